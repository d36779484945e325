# Packages from the distribution.  Each name is used by exactly the folders that the tidy test
# allows: czmq in actors/, msgpack in proto/, and so on (tests/tidy).
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(CZMQ REQUIRED IMPORTED_TARGET libczmq)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(SECCOMP REQUIRED IMPORTED_TARGET libseccomp)
pkg_check_modules(EVENT REQUIRED IMPORTED_TARGET libevent)
pkg_check_modules(NCURSES IMPORTED_TARGET ncursesw) # only `onepath top` wants it
pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)

find_path(MSGPACK_INCLUDE_DIR msgpack.h REQUIRED)
find_library(MSGPACK_LIBRARY NAMES msgpackc msgpack-c REQUIRED)
add_library(onepath_msgpack INTERFACE)
target_include_directories(onepath_msgpack SYSTEM INTERFACE "${MSGPACK_INCLUDE_DIR}")
target_link_libraries(onepath_msgpack INTERFACE "${MSGPACK_LIBRARY}")

find_path(HTTP_PARSER_INCLUDE_DIR http_parser.h REQUIRED)
find_library(HTTP_PARSER_LIBRARY http_parser REQUIRED)
add_library(onepath_http_parser INTERFACE)
target_include_directories(onepath_http_parser SYSTEM INTERFACE "${HTTP_PARSER_INCLUDE_DIR}")
target_link_libraries(onepath_http_parser INTERFACE "${HTTP_PARSER_LIBRARY}")
