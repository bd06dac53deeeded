//! Where a kernel with barriers is left.
//!
//! A whole work-group may leave before a barrier (`if (group >= groups) return;`). PoCL, which runs the items
//! of a group in loops between barriers, then runs the part after the last barrier wrongly: its loops go on
//! with the state of the first item. A barrier at the very end of the kernel gives that part an end of its own.

/// What happens at a place of a function's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A barrier, or a call of a function with one; whether every item comes by that has not left.
    Barrier {
        always: bool,
    },
    Return,
}

/// Whether a barrier before the last return of a kernel is reached by all items of a group or by none, and is
/// of use: items leave before a barrier, and none leaves after the last one. Between leaving and the end must
/// be a barrier that all others come by, so that those who leave are whole groups.
pub(super) fn needs_closing_barrier(marks: &[Mark]) -> bool {
    let Some((Mark::Return, marks)) = marks.split_last() else { return false };
    let is_return = |mark: &Mark| *mark == Mark::Return;
    let Some(last_left) = marks.iter().rposition(is_return) else { return false };
    marks[last_left..].contains(&Mark::Barrier { always: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kernel_that_whole_groups_leave_early_gets_one() {
        let (always, nested) = (Mark::Barrier { always: true }, Mark::Barrier { always: false });
        let left = Mark::Return;
        assert!(needs_closing_barrier(&[left, always, left]));
        assert!(needs_closing_barrier(&[left, nested, always, nested, left]));
        // No one leaves early.
        assert!(!needs_closing_barrier(&[always, left]));
        // Single items may leave: after the last barrier, or past one that not all come by.
        assert!(!needs_closing_barrier(&[left, always, left, left]));
        assert!(!needs_closing_barrier(&[left, nested, left]));
        assert!(!needs_closing_barrier(&[left, left]));
        assert!(!needs_closing_barrier(&[always]));
        assert!(!needs_closing_barrier(&[]));
    }
}
