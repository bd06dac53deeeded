// Offsets of a loop nest (ops::strided::Nest): NEST_MAX sizes in p.sizes, of which the last RANK count.
#ifndef ONEPOOL_NEST_GLSL
#define ONEPOOL_NEST_GLSL

#define NEST_MAX 6  // rust RANK: dimensions that kernel parameters hold

// Splits `index` into coordinates, innermost first, and runs `BODY(d, c)` for coordinate c of dimension d.
#define FOR_EACH_COORDINATE(RANK, index, BODY)                   \
    {                                                            \
        uint left_ = (index);                                    \
        for (int d_ = NEST_MAX - 1; d_ > NEST_MAX - RANK; d_--) { \
            uint next_ = left_ / p.sizes[d_];                    \
            int c_ = int(left_ - next_ * p.sizes[d_]);           \
            BODY(d_, c_)                                         \
            left_ = next_;                                       \
        }                                                        \
        int c_ = int(left_);                                     \
        BODY(NEST_MAX - RANK, c_)                                \
    }

#endif
