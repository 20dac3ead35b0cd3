/* The folders that glibc's test driver asks for: a test writes where it is started. */
const char support_objdir_root[] = ".";
const char support_srcdir_root[] = ".";
