# Language level, warnings, hardening and sanitizers, the same for every target.
option(ONEPATH_CUDA "Build the CUDA device (needs nvcc)" OFF)
option(ONEPATH_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(ONEPATH_BENCH "Build the benchmarks" ON)
set(ONEPATH_SANITIZE "" CACHE STRING "address (with undefined), thread, or empty")
set_property(CACHE ONEPATH_SANITIZE PROPERTY STRINGS "" address thread)

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug or Release" FORCE)
endif()
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# `require` stays on in every build and NDEBUG is never set (style guide, Assertions).
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
set(CMAKE_C_FLAGS_DEBUG "-O0 -g3")

add_compile_definitions(_GNU_SOURCE _FILE_OFFSET_BITS=64)
add_compile_definitions($<$<CONFIG:Debug>:ONEPATH_DEBUG=1>)
set(onepath_c_options
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wswitch-enum -Wvla -Werror -fno-strict-aliasing -fno-common -fstack-protector-strong)
# nvcc has a vocabulary of its own.
add_compile_options("$<$<COMPILE_LANGUAGE:C>:${onepath_c_options}>")
add_compile_options($<$<AND:$<COMPILE_LANGUAGE:C>,$<CONFIG:Release>>:-D_FORTIFY_SOURCE=2>)
# A float result may depend on the order of operations, never on the compiler's mood: contraction
# to FMA is written out where it is wanted, so that the reference and the kernels stay comparable.
add_compile_options($<$<COMPILE_LANGUAGE:C>:-ffp-contract=off>)
add_link_options(-Wl,-z,relro,-z,now)

if(ONEPATH_SANITIZE STREQUAL "address")
    add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                        -fno-omit-frame-pointer)
    add_link_options(-fsanitize=address,undefined)
elseif(ONEPATH_SANITIZE STREQUAL "thread")
    add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        # The record ring orders its stores with fences, which gcc's TSan does not model; its two
        # sides are two processes, which TSan does not see together anyway.
        add_compile_options(-Wno-tsan)
    endif()
    add_link_options(-fsanitize=thread)
elseif(NOT ONEPATH_SANITIZE STREQUAL "")
    message(FATAL_ERROR "ONEPATH_SANITIZE is '${ONEPATH_SANITIZE}': use address, thread or empty")
endif()
if(NOT ONEPATH_SANITIZE STREQUAL "")
    # Unoptimised sanitizer runs are too slow for what the tests do; the last -O counts.
    add_compile_options(-O1)
endif()
if(ONEPATH_FUZZ)
    # Every folder, not only the targets: libFuzzer follows the coverage of what it tests.
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(ONEPATH_CCACHE ccache)
if(ONEPATH_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER "${ONEPATH_CCACHE}")
endif()

if(ONEPATH_CUDA)
    # wgmma and bulk copies need the architecture's own instructions.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    endif()
    if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
        set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
else()
    message(STATUS "Onepath: CPU only (ONEPATH_CUDA is off)")
endif()
