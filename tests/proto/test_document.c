/* docs/protocol.md shows the messages that there are, not those of last month. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "reference_text.h"

START_TEST(the_reference_in_the_document_is_up_to_date)
{
    const char *source = getenv("ONEPATH_SOURCE");
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/docs/protocol.md", source != NULL ? source : ".");
    char *document = reference_read(path);
    ck_assert_msg(document != NULL, "%s", path);
    char *begin = strstr(document, REFERENCE_BEGIN);
    ck_assert_msg(begin != NULL, "no begin mark");
    begin += strlen(REFERENCE_BEGIN);
    char *end = strstr(begin, REFERENCE_END);
    ck_assert_msg(end != NULL, "no end mark");

    char *wanted = NULL;
    size_t wanted_size = 0;
    FILE *out = open_memstream(&wanted, &wanted_size);
    ck_assert_ptr_nonnull(out);
    reference_write(out);
    (void)fclose(out);
    ck_assert_uint_gt(wanted_size, 1000);
    ck_assert_msg((size_t)(end - begin) == wanted_size && memcmp(begin, wanted, wanted_size) == 0,
                  "docs/protocol.md is out of date: run proto_reference docs/protocol.md");
    free(wanted);
    free(document);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.document");
    TCase *tcase = tcase_create("document");
    tcase_add_test(tcase, the_reference_in_the_document_is_up_to_date);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
