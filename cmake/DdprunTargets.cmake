# SPDX-License-Identifier: Apache-2.0
# Defines the three kinds of target in this tree: library, program, test. All compiler flags are here.

add_library(ddprun_flags INTERFACE)
target_include_directories(ddprun_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(ddprun_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
# Also for programs with flags of their own. A precompiled header from ccache may be refused, which only costs time.
add_compile_options("$<$<BOOL:${DDPRUN_WERROR}>:-Werror;-Wno-error=invalid-pch>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 with optimisation takes "text" + std::string for a copy onto itself (GCC bug 105329).
  target_compile_options(ddprun_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
target_compile_definitions(ddprun_flags INTERFACE _GNU_SOURCE DDPRUN_VERSION="${PROJECT_VERSION}"
                           BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION)  # rendezvous/asio
# Without this, g++ spends a tenth of its time on garbage collection, to use a quarter less memory.
if(DDPRUN_BUILD_ONCE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(ddprun_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=2097152>)  # KiB
endif()
# Hardens programs that can be attacked over the network (docs/security.md, tests/project/hardening_test.py).
set(ddprun_hardened_compile -fstack-protector-strong $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE$<SEMICOLON>-D_FORTIFY_SOURCE=2>)
set(ddprun_hardened_link -Wl,-z,relro,-z,now)
# -pie is not the default of every compiler, e.g. not of the wheel's.
set(ddprun_pie $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)
if(NOT DDPRUN_SANITIZE)
  target_compile_options(ddprun_flags INTERFACE ${ddprun_hardened_compile})
  target_link_options(ddprun_flags INTERFACE ${ddprun_hardened_link} ${ddprun_pie})
endif()
if(DDPRUN_SANITIZE)
  target_compile_options(ddprun_flags INTERFACE -fsanitize=${DDPRUN_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # Tests' own code is compiled without UBSan, which would take a quarter of the compiler's time.
  target_compile_options(ddprun_flags INTERFACE
                         $<$<BOOL:$<TARGET_PROPERTY:DDPRUN_IS_TEST>>:-fno-sanitize=undefined>)
  target_link_options(ddprun_flags INTERFACE -fsanitize=${DDPRUN_SANITIZE})
  if(DDPRUN_SANITIZE MATCHES undefined)
    # This one check opens a pipe to look at memory, and so reports errors in the tests that run out
    # of descriptors on purpose.
    target_compile_options(ddprun_flags INTERFACE -fno-sanitize=vptr)
    # These checks take a quarter of the compiler's time. AddressSanitizer finds the same errors at the access.
    target_compile_options(ddprun_flags INTERFACE -fno-sanitize=object-size,pointer-overflow)
    # These checks are two fifths of a program's size and a quarter of the compiler's time. AddressSanitizer finds
    # null, too, and ddprun's processors read unaligned addresses. The nightly build has them (scripts/test_behind.sh).
    if(NOT DDPRUN_NIGHTLY)
      target_compile_options(ddprun_flags INTERFACE -fno-sanitize=null,alignment)
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Otherwise GCC's sanitizer data needs relocations at each start.
      target_link_options(ddprun_flags INTERFACE
        $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
    endif()
  endif()
endif()

# Looks for ccache only once: if it were installed later, its name in the commands would recompile everything.
if(NOT DEFINED DDPRUN_CCACHE)
  find_program(DDPRUN_CCACHE ccache)
endif()
if(DDPRUN_CCACHE)
  # Relative paths let checkouts in different folders share their compiled files.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
    CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${DDPRUN_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# g++ matches the `#pragma once` of a precompiled header by each file's bytes. After a change of only comments or spaces
# ccache would return the old precompiled header. The files that use it would then define everything twice.
set(ddprun_precompiled ${CMAKE_SOURCE_DIR}/cmake/headers_std.h ${CMAKE_SOURCE_DIR}/cmake/headers_asio.h
                       ${CMAKE_SOURCE_DIR}/tests/support/catch.h)
function(ddprun_cache_headers target)
  if(DDPRUN_CCACHE)
    list(JOIN ddprun_precompiled : bytes)
    set_property(TARGET ${target} PROPERTY CXX_COMPILER_LAUNCHER
                 ${CMAKE_COMMAND} -E env CCACHE_EXTRAFILES=${bytes} ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
endfunction()

# To link a program with sanitizers GNU ld needs 14 core-seconds, lld 2.
find_program(DDPRUN_LLD ld.lld)
if(DDPRUN_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# At most one LibTorch compile job per 2 GB of memory.
cmake_host_system_information(RESULT ddprun_memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR ddprun_torch_jobs "${ddprun_memory_mb} / 2048")
if(ddprun_torch_jobs LESS 1)
  set(ddprun_torch_jobs 1)
endif()
set_property(GLOBAL PROPERTY JOB_POOLS torch=${ddprun_torch_jobs})

# Compiles the target with less optimisation, in about two thirds of the time.
function(ddprun_compile_plainly target)
  if(DDPRUN_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  elseif(DDPRUN_PLAIN_OPTIMISATION)
    target_compile_options(${target} PRIVATE ${DDPRUN_PLAIN_OPTIMISATION})
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# With DDPRUN_BUILD_ONCE the headers that most files include are precompiled. They are the standard library's, Asio's
# for targets that link it, and Catch2's for tests. A precompiled header is valid for one optimisation level and one
# addressing mode only, so programs use those of the libraries.
if(DDPRUN_BUILD_ONCE)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers.cc CONTENT "")
  foreach(kind fast_std small_std std small_asio asio test_std test_asio)
    set(headers ddprun_headers_${kind})
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/headers.cc)
    ddprun_cache_headers(${headers})
    target_link_libraries(${headers} PRIVATE ddprun_flags)
    if(kind MATCHES asio)
      target_link_libraries(${headers} PRIVATE Boost::json)  # g++ needs the definitions of the files that use it
      target_precompile_headers(${headers} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/headers_asio.h)
    else()
      target_precompile_headers(${headers} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/headers_std.h)
    endif()
    if(kind MATCHES test)
      target_precompile_headers(${headers} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/catch.h)
    endif()
    if(kind MATCHES small)
      target_compile_options(${headers} PRIVATE -Os)
    elseif(NOT kind MATCHES fast)
      ddprun_compile_plainly(${headers})
    endif()
  endforeach()
endif()
function(ddprun_reuse_headers target from)
  target_precompile_headers(${target} REUSE_FROM ${from})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With a precompiled header g++ no longer knows which lines are system headers', and warns about them.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-maybe-uninitialized -Wno-stringop-overflow
                           -Wno-stringop-overread)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_property(TARGET ${target} PROPERTY POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

# Gives a target of ddprun_library, _program or _test its precompiled header. Reads the caller's ARG_DEPS.
function(ddprun_share_headers target)
  set(kind std)
  foreach(library IN LISTS ARG_DEPS)
    if(TARGET ${library})
      get_target_property(has_asio ${library} DDPRUN_HAS_ASIO)
      if(has_asio)
        set(kind asio)
        set_target_properties(${target} PROPERTIES DDPRUN_HAS_ASIO ON)
        target_link_libraries(${target} PRIVATE Boost::json)
      endif()
    endif()
  endforeach()
  if("${ARG_DEPS}" MATCHES torch OR ARG_OPTIMIZED)
    return()  # ddprun_compile_torch uses others; an optimised test has none
  endif()
  if(target MATCHES "_test$")
    set(kind test_${kind})
  elseif(NOT DDPRUN_IN_TESTS AND CMAKE_CXX_FLAGS_RELEASE MATCHES -O3)
    set(kind fast_${kind})
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT DDPRUN_SANITIZE AND NOT DDPRUN_IN_TESTS AND CMAKE_CXX_FLAGS_RELEASE MATCHES -Os)
    set(kind small_${kind})
  endif()
  if(TARGET ddprun_headers_${kind})
    ddprun_reuse_headers(${target} ddprun_headers_${kind})
  endif()
endfunction()

# With DDPRUN_BUILD_ONCE a target's files are compiled as one: Boost's headers are read and their templates
# instantiated once. So names in anonymous namespaces must differ within a folder. Two equal functions belong in one
# place, and different ones need better names.
function(ddprun_compile_together target)
  set_target_properties(${target} PROPERTIES DDPRUN_IS_TEST "${DDPRUN_IN_TESTS}")
  # Optimising and instrumenting Catch2's macros would take half of a build's time, for nothing. The code under
  # test keeps the build's flags.
  if(DDPRUN_IN_TESTS AND NOT ARG_OPTIMIZED)
    ddprun_compile_plainly(${target})
  endif()
  if(DDPRUN_BUILD_ONCE)
    ddprun_share_headers(${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
    if(NOT DEFINED CMAKE_UNITY_BUILD_BATCH_SIZE)
      set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ takes each included source for a header, and warns about its anonymous namespaces.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# tests/fuzz feeds these libraries.
set(ddprun_fuzzed common json asio http security journal journal_file store store_server ha membership gangs pages daemon launcher
    submit doctor checkpoint)

# ddprun_library(NAME SOURCES a.cc… DEPS lib…): one static library per folder, alias ddprun::NAME.
function(ddprun_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(ddprun_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(ddprun_${name} PUBLIC $<BUILD_INTERFACE:ddprun_flags> ${ARG_DEPS})
    if(DDPRUN_FUZZ AND name IN_LIST ddprun_fuzzed)
      # Records coverage for libFuzzer, like -fsanitize=fuzzer-no-link, which precompiled headers would need, too.
      target_compile_options(ddprun_${name} PRIVATE
        -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)
    endif()
    ddprun_compile_together(ddprun_${name})
  else()
    add_library(ddprun_${name} INTERFACE)
    target_link_libraries(ddprun_${name} INTERFACE $<BUILD_INTERFACE:ddprun_flags> ${ARG_DEPS})
  endif()
  add_library(ddprun::${name} ALIAS ddprun_${name})
endfunction()

# ddprun_program(NAME SOURCES a.cc… DEPS lib…)
function(ddprun_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ddprun_flags ${ARG_DEPS})
  ddprun_compile_together(${name})
endfunction()

# Adds a program that users call. With DDPRUN_ONE_PROGRAM `ddprund` has them all but `ddprun`, and the others only start
# it. `ddprun` is a program of its own, because a job's memory is mostly code and tables of its program.
set(ddprun_one_program ${CMAKE_SOURCE_DIR}/packaging/one_program)
function(ddprun_user_program name)
  if(NOT DDPRUN_ONE_PROGRAM OR name STREQUAL ddprun)
    ddprun_program(${name} ${ARGN})
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  string(MAKE_C_IDENTIFIER ${name}_main main)
  add_library(${main} OBJECT ${ARG_SOURCES})
  target_link_libraries(${main} PRIVATE ddprun_flags ${ARG_DEPS})
  target_compile_definitions(${main} PRIVATE main=${main})
  ddprun_compile_together(${main})
  if(NOT TARGET ddprund)
    add_executable(ddprund ${ddprun_one_program}/main.cc)
  endif()
  target_link_libraries(ddprund PRIVATE ddprun_flags ${main} ${ARG_DEPS})
  if(NOT name STREQUAL ddprund)
    add_executable(${name} ${ddprun_one_program}/named_program.c)
    target_compile_definitions(${name} PRIVATE DDPRUN_NAME="${name}")
    target_compile_options(${name} PRIVATE -Os ${ddprun_hardened_compile})
    target_link_options(${name} PRIVATE ${ddprun_hardened_link} ${ddprun_pie})
    add_dependencies(${name} ddprund)
  endif()
endfunction()

# ddprun_example(NAME SOURCES a.cc… DEPS lib…): a program that includes <ddprun/core/session.h> and so on,
# as programs outside this tree do (Sdk.cmake).
function(ddprun_example name)
  ddprun_program(${name} ${ARGN})
  target_include_directories(${name} BEFORE PRIVATE ${CMAKE_BINARY_DIR}/sdk/include)
endfunction()

# ddprun_compile_torch(target…): for targets whose files include LibTorch, which take 1.5 GB each. A build
# that is made once reads <torch/torch.h> once, which is four fifths of the work for each of them.
function(ddprun_compile_torch)
  foreach(target IN LISTS ARGN)
    set_property(TARGET ${target} PROPERTY JOB_POOL_COMPILE torch)
    ddprun_compile_plainly(${target})  # the computing is LibTorch's
    if(NOT DDPRUN_BUILD_ONCE)
      continue()
    endif()
    if(target STREQUAL ddprun_torch)
      target_precompile_headers(ddprun_torch PRIVATE <torch/torch.h>)
    else()
      ddprun_reuse_headers(${target} ddprun_torch)
    endif()
  endforeach()
endfunction()

# ThreadSanitizer runs only tests with threads, because most of this tree is event loops of one thread each.
if(DDPRUN_SANITIZE MATCHES "thread")
  add_custom_target(thread_tests)
endif()

# This folder keeps a test's seed until the test passes (tests/support/seed.h).
set(ddprun_test_seeds DDPRUN_TEST_SEEDS=${CMAKE_BINARY_DIR}/Testing/seeds)

# ddprun_test(NAME SOURCES a_test.cc… DEPS lib… [LABELS l…] [TIMEOUT s] [COST s] [THREADS] [LOGIC]
#             [NIGHTLY_THREADS] [OPTIMIZED] [RUN_SERIAL])
# COST: about how many seconds the test takes, so that ctest starts the longest first. A cost for every test would
# save 10 s of 332 without a level and nothing in CI. One entry for each class of a script would save no more. No test
# needs a RESOURCE_LOCK: speeds are measured in turn and compared, so that load counts for both. THREADS: the code
# under test has several threads; ThreadSanitizer runs only these tests (target thread_tests). NIGHTLY_THREADS: the
# same, with DDPRUN_NIGHTLY only. LOGIC: the test shows as much under sanitizers (crowd_test.cc with fewer jobs), and
# isn't skipped there (scripts/check_skips.py). So CI runs it only under AddressSanitizer (off with
# DDPRUN_TEST_LOGIC=OFF). OPTIMIZED: the test's own code is optimised, too.
# Each TEST_CASE becomes one ctest entry, and DDPRUN_SKIP (tests/support/catch.h) skips it. Under sanitizers a
# program without a label is one entry, because starting it for each case would cost more than the cases.
function(ddprun_test name)
  cmake_parse_arguments(ARG "RUN_SERIAL;THREADS;NIGHTLY_THREADS;LOGIC;OPTIMIZED" "TIMEOUT;COST" "SOURCES;DEPS;LABELS" ${ARGN})
  if(ARG_NIGHTLY_THREADS AND DDPRUN_NIGHTLY)
    set(ARG_THREADS TRUE)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ddprun::test_main ${ARG_DEPS})
  ddprun_compile_together(${name})
  if((TARGET thread_tests AND NOT ARG_THREADS) OR (ARG_LOGIC AND NOT DDPRUN_TEST_LOGIC))
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    return()
  endif()
  if(TARGET thread_tests)
    add_dependencies(thread_tests ${name})
  endif()
  set(properties TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77 ENVIRONMENT ${ddprun_test_seeds})
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  if(ARG_RUN_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  if(ARG_COST)
    list(APPEND properties COST ${ARG_COST})
  endif()
  if(DDPRUN_SANITIZE AND NOT ARG_LABELS AND NOT ARG_OPTIMIZED)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES ${properties} TIMEOUT 300)
    return()
  endif()
  # NoTests: an entry whose name CMake mangled matches no test, and must fail.
  catch_discover_tests(${name} TEST_PREFIX "${name}: " EXTRA_ARGS --warn NoTests
                       PROPERTIES ${properties})
endfunction()

# The Python for tests and tools: .venv's (it has PyTorch after a full set-up), else the system's. Each configure
# looks again, because scripts/demo.sh configures this folder while .venv is still being made.
set(DDPRUN_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python3)
if(NOT EXISTS ${DDPRUN_PYTHON})
  find_program(ddprun_system_python python3 REQUIRED)
  set(DDPRUN_PYTHON ${ddprun_system_python})
endif()

# ddprun_script_test(NAME SCRIPT file [ARGS a…] [LABELS l…] [TIMEOUT s] [THREADS] [LOGIC] [RUN_SERIAL])
# One ctest entry for a Python (.py) or shell script. $DDPRUN_BIN_DIR has the programs,
# $DDPRUN_SOURCE_DIR the source tree and $DDPRUN_SANITIZE the build's sanitizers. Exit status 77
# (tests/support/runner.py) counts as skipped. LOGIC: as for ddprun_test.
function(ddprun_script_test name)
  cmake_parse_arguments(ARG "RUN_SERIAL;THREADS;LOGIC" "SCRIPT;TIMEOUT" "ARGS;LABELS" ${ARGN})
  if((TARGET thread_tests AND NOT ARG_THREADS) OR (ARG_LOGIC AND NOT DDPRUN_TEST_LOGIC))
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  get_filename_component(script ${ARG_SCRIPT} ABSOLUTE)
  if(script MATCHES "\\.py$")
    add_test(NAME ${name} COMMAND ${DDPRUN_PYTHON} -B ${script} ${ARG_ARGS})
  else()
    add_test(NAME ${name} COMMAND bash ${script} ${ARG_ARGS})
  endif()
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${ARG_LABELS}"
    ENVIRONMENT "DDPRUN_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};DDPRUN_SOURCE_DIR=${CMAKE_SOURCE_DIR};DDPRUN_SANITIZE=${DDPRUN_SANITIZE};${ddprun_test_seeds}")
  if(ARG_RUN_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()
