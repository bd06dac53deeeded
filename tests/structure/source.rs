//! Rust source as tokens, and the paths in it.

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Word(String),
    /// `::`
    Path,
    /// Any other character.
    Sign(char),
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub kind: Kind,
    pub line: usize,
}

impl Token {
    pub(crate) fn is(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(w) if w == word)
    }

    pub(crate) fn sign(&self, sign: char) -> bool {
        self.kind == Kind::Sign(sign)
    }
}

/// Rust source without comments and literals, and its comments by line.
pub(crate) struct Source {
    pub tokens: Vec<Token>,
    /// Comment text of each line, from 0.
    pub comments: Vec<String>,
}

impl Source {
    pub(crate) fn read(text: &str) -> Source {
        let chars: Vec<char> = text.chars().collect();
        let mut s = Source { tokens: Vec::new(), comments: vec![String::new(); text.lines().count() + 2] };
        let (mut i, mut line) = (0, 0);
        let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
        while i < chars.len() {
            let start = i;
            match chars[i] {
                '/' if at(i + 1) == '/' => {
                    while i < chars.len() && chars[i] != '\n' {
                        i += 1;
                    }
                    s.comments[line].extend(&chars[start..i]);
                }
                '/' if at(i + 1) == '*' => {
                    let mut depth = 0;
                    loop {
                        match (at(i), at(i + 1)) {
                            ('/', '*') => (depth, i) = (depth + 1, i + 2),
                            ('*', '/') => (depth, i) = (depth - 1, i + 2),
                            ('\n', _) => (line, i) = (line + 1, i + 1),
                            _ => {
                                s.comments[line].push(at(i));
                                i += 1;
                            }
                        }
                        if depth == 0 || i >= chars.len() {
                            break;
                        }
                    }
                }
                '"' => i = string(&chars, i + 1, None),
                '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                    i += if at(i + 1) == '\\' { 3 } else { 2 };
                    while i < chars.len() && chars[i] != '\'' {
                        i += 1;
                    }
                    i += 1;
                }
                c if c.is_alphanumeric() || c == '_' => {
                    while at(i).is_alphanumeric() || at(i) == '_' {
                        i += 1;
                    }
                    let word: String = chars[start..i].iter().collect();
                    let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
                    let raw = matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"';
                    if raw {
                        i = string(&chars, i + hashes + 1, Some(hashes));
                    } else {
                        s.tokens.push(Token { kind: Kind::Word(word), line });
                    }
                }
                ':' if at(i + 1) == ':' => {
                    s.tokens.push(Token { kind: Kind::Path, line });
                    i += 2;
                }
                c => {
                    if !c.is_whitespace() {
                        s.tokens.push(Token { kind: Kind::Sign(c), line });
                    }
                    line += usize::from(c == '\n');
                    i += 1;
                    continue;
                }
            }
            if chars[start] != '/' || at(start + 1) != '*' {
                line += chars[start..i.min(chars.len())].iter().filter(|c| **c == '\n').count();
            }
        }
        s
    }
}

/// Where the string ends whose content starts at `i`; `hashes` of a raw one.
fn string(chars: &[char], mut i: usize, hashes: Option<usize>) -> usize {
    while i < chars.len() {
        match (chars[i], hashes) {
            ('\\', None) => i += 1,
            ('"', None) => return i + 1,
            ('"', Some(n)) if chars[i + 1..].iter().take(n).filter(|c| **c == '#').count() == n => {
                return i + 1 + n;
            }
            _ => {}
        }
        i += 1;
    }
    i
}

/// The end of the item that starts at `i`: after its `;` or its closing brace.
pub(crate) fn item_end(tokens: &[Token], mut i: usize) -> usize {
    let mut depth = 0usize;
    while i < tokens.len() {
        match tokens[i].kind {
            Kind::Sign('{' | '(' | '[') => depth += 1,
            Kind::Sign(')' | ']') => depth = depth.saturating_sub(1),
            Kind::Sign('}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i + 1;
                }
            }
            Kind::Sign(';') if depth == 0 => return i + 1,
            _ => {}
        }
        i += 1;
    }
    i
}

/// The end of the attribute whose `#` is at `i`, and whether it is `cfg(test)`, `cfg(all(test, ..))` or
/// `cfg(any(test, feature = ..))`, a feature for tests.
pub(crate) fn attribute(tokens: &[Token], i: usize) -> Option<(usize, bool)> {
    let open = i + 1 + usize::from(tokens.get(i + 1).is_some_and(|t| t.sign('!')));
    if !tokens.get(i)?.sign('#') || !tokens.get(open)?.sign('[') {
        return None;
    }
    let mut depth = 0;
    let mut end = open;
    loop {
        match tokens.get(end)?.kind {
            Kind::Sign('[') => depth += 1,
            Kind::Sign(']') => depth -= 1,
            _ => {}
        }
        end += 1;
        if depth == 0 {
            break;
        }
    }
    let inside = &tokens[open + 1..end - 1];
    let cfg = inside.first().is_some_and(|t| t.is("cfg"));
    let all = inside.get(2).is_some_and(|t| t.is("test") || t.is("all"));
    let any = inside.get(2).is_some_and(|t| t.is("any"))
        && inside.get(4).is_some_and(|t| t.is("test"))
        && inside.get(6).is_some_and(|t| t.is("feature"));
    Some((end, cfg && (any || all && inside.iter().any(|t| t.is("test")))))
}

/// The tokens without what only tests see, and the names of modules that are files of tests.
pub(crate) fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    let (mut kept, mut files) = (Vec::new(), Vec::new());
    let mut i = 0;
    while i < tokens.len() {
        match attribute(tokens, i) {
            Some((end, true)) => {
                let mut item = end;
                while let Some((next, _)) = attribute(tokens, item) {
                    item = next;
                }
                let stop = item_end(tokens, item);
                let module = &tokens[item..stop];
                if let [.., name, semicolon] = module
                    && module.iter().any(|t| t.is("mod"))
                    && semicolon.sign(';')
                    && let Kind::Word(name) = &name.kind
                {
                    files.push(name.clone());
                }
                i = stop;
            }
            Some((end, false)) => {
                kept.extend_from_slice(&tokens[i..end]);
                i = end;
            }
            None => {
                kept.push(tokens[i].clone());
                i += 1;
            }
        }
    }
    (kept, files)
}

/// A path of the crate that a file uses.
pub(crate) struct Used {
    pub line: usize,
    /// From the crate's root.
    pub path: Vec<String>,
    /// The name that a `use` gives it.
    pub name: String,
}

/// Every path that starts at the crate's root, at `self` or at `super`, resolved for a file of module `here`.
pub(crate) fn paths(tokens: &[Token], here: &[String]) -> Vec<Used> {
    let mut found = Vec::new();
    // Modules written in braces: the depth they end at.
    let (mut depth, mut inner): (usize, Vec<usize>) = (0, Vec::new());
    for (i, token) in tokens.iter().enumerate() {
        match &token.kind {
            Kind::Sign('{') => {
                depth += 1;
                if i >= 2 && tokens[i - 2].is("mod") {
                    inner.push(depth);
                }
            }
            Kind::Sign('}') => {
                if inner.last() == Some(&depth) {
                    inner.pop();
                }
                depth = depth.saturating_sub(1);
            }
            Kind::Word(w) if matches!(w.as_str(), "crate" | "self" | "super") => {
                let starts = i == 0 || tokens[i - 1].kind != Kind::Path;
                if starts && tokens.get(i + 1).is_some_and(|t| t.kind == Kind::Path) {
                    let mut base = here.to_vec();
                    base.extend(inner.iter().map(|_| "{}".to_owned()));
                    tree(tokens, i, base, &mut found);
                }
            }
            _ => {}
        }
    }
    found
}

/// Follows one path, through the braces of a `use`; returns where it ends.
pub(crate) fn tree(tokens: &[Token], mut i: usize, mut at: Vec<String>, found: &mut Vec<Used>) -> usize {
    let line = tokens.get(i).map_or(0, |t| t.line);
    while let Some(token) = tokens.get(i) {
        match &token.kind {
            Kind::Word(w) => {
                match w.as_str() {
                    "crate" => at.clear(),
                    "super" => drop(at.pop()),
                    "self" => {}
                    _ => at.push(w.clone()),
                }
                i += 1;
                if tokens.get(i).is_none_or(|t| t.kind != Kind::Path) {
                    break;
                }
                i += 1;
            }
            Kind::Sign('{') => {
                i += 1;
                while tokens.get(i).is_some_and(|t| !t.sign('}')) {
                    let next = tree(tokens, i, at.clone(), found);
                    // A comma, or `as name,`.
                    i = next.max(i + 1);
                    while tokens.get(i).is_some_and(|t| !t.sign(',') && !t.sign('}')) {
                        i += 1;
                    }
                    i += usize::from(tokens.get(i).is_some_and(|t| t.sign(',')));
                }
                return i + 1;
            }
            _ => break,
        }
    }
    at.retain(|segment| segment != "{}");
    let name = match tokens.get(i..) {
        Some([renamed, Token { kind: Kind::Word(name), .. }, ..]) if renamed.is("as") => Some(name),
        _ => at.last(),
    };
    found.push(Used { line, name: name.cloned().unwrap_or_default(), path: at });
    i
}
