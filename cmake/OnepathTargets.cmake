# onepath_library(NAME LINK a b ...)  makes the static library onepath_NAME from all *.c of the
# calling folder; its include path is that folder, so a target sees only what it links.
function(onepath_library name)
    cmake_parse_arguments(arg "" "" "LINK;PRIVATE_LINK" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.c")
    add_library(onepath_${name} STATIC ${sources})
    target_include_directories(onepath_${name} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(onepath_${name} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE_LINK})
endfunction()

# onepath_test(LAYER.OBJECT SOURCES ... LINK ... [LABELS ...] [TIMEOUT seconds])
# makes one libcheck executable and one ctest of that name.
function(onepath_test name)
    cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
    string(REPLACE "." "_" target "test_${name}")
    add_executable(${target} ${arg_SOURCES})
    # libcheck's macros pass variadic arguments that -Wpedantic dislikes.
    target_compile_options(${target} PRIVATE -Wno-gnu-zero-variadic-macro-arguments)
    target_link_libraries(${target} PRIVATE ${arg_LINK} PkgConfig::CHECK Threads::Threads m rt)
    add_test(NAME ${name} COMMAND ${target} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 60)
    endif()
    if(NOT arg_LABELS)
        set(arg_LABELS unit)
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
        ENVIRONMENT "ONEPATH_BIN=${CMAKE_BINARY_DIR}/bin;ONEPATH_SOURCE=${CMAKE_SOURCE_DIR}")
endfunction()

# onepath_fuzz(NAME SOURCES ... LINK ...)  makes a libFuzzer target fuzz_NAME (clang only).
function(onepath_fuzz name)
    if(NOT ONEPATH_FUZZ)
        return()
    endif()
    cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
    add_executable(fuzz_${name} ${arg_SOURCES})
    target_link_libraries(fuzz_${name} PRIVATE ${arg_LINK})
    target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
endfunction()

# onepath_bench(NAME SOURCES ... LINK ...)  makes the program bench_NAME, run by hand.
function(onepath_bench name)
    if(NOT ONEPATH_BENCH)
        return()
    endif()
    cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
    add_executable(bench_${name} ${arg_SOURCES})
    target_link_libraries(bench_${name} PRIVATE ${arg_LINK} Threads::Threads m rt)
    set_target_properties(bench_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
endfunction()
