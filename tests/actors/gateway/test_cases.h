/* test_cases.h - the live tests of the gateway, in three files. */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include <check.h>

TCase *probe_cases(void);  /* hostile bytes, deadlines, limits */
TCase *stream_cases(void); /* streams, and what ends them early */

#endif
