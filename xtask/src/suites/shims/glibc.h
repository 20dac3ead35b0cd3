/* Names that the build of glibc defines. In a test program nothing is hidden. */
#include <limits.h>
#define libc_hidden_def(name)
#define libc_hidden_proto(name)
#define attribute_hidden
#define __set_errno(value) (errno = (value))
/* `cargo xtask suites` has a time limit of its own. */
#define TIMEOUTFACTOR 100
