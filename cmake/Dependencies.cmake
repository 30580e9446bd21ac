# SPDX-License-Identifier: Apache-2.0
# Finds the libraries that the build needs, and prints a table of those that were found and those that are off.

find_package(Threads REQUIRED)
set(Boost_USE_STATIC_LIBS ON)
if(POLICY CMP0167)
  cmake_policy(SET CMP0167 OLD)  # FindBoost also finds a Boost without a CMake package (scripts/wheel.sh)
endif()
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(OpenSSL 3 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_path(DDPRUN_TOMLPP_DIR toml++/toml.h REQUIRED)  # header-only, so programs load no library for it
find_package(SQLite3 REQUIRED)
find_package(ZLIB)
# curses is for ddprunctl top.
set(CURSES_NEED_NCURSES TRUE)
set(CURSES_NEED_WIDE TRUE)
find_package(Curses REQUIRED)
add_library(ddprun_ncursesw INTERFACE)
add_library(ddprun::ncursesw ALIAS ddprun_ncursesw)
target_include_directories(ddprun_ncursesw SYSTEM INTERFACE ${CURSES_INCLUDE_DIRS})
# Leaves out curses' macros, which have names as short as "move" and "clear".
target_compile_definitions(ddprun_ncursesw INTERFACE NCURSES_NOMACROS)
target_link_libraries(ddprun_ncursesw INTERFACE ${CURSES_LIBRARIES})
# libdw is for native stacks of workers that hang; without it ddprun names only their system call. It is
# loaded by dlopen.
find_path(DDPRUN_LIBDW_DIR elfutils/libdwfl.h)
# The code that copies registers is written for these processors only.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  set(DDPRUN_LIBDW_DIR "")
endif()
if(DDPRUN_BUILD_TESTS)
  find_package(Catch2 REQUIRED)
  include(Catch)
endif()

# NCCL and CUDA are loaded by dlopen; the build needs only their headers (docs/internals/architecture.md).
set(DDPRUN_NCCL_INCLUDE_DIR "")
set(DDPRUN_CUDA_INCLUDE_DIR "")
if(NOT DDPRUN_WITH_CUDA STREQUAL "OFF")
  # Without a toolkit the wheels that PyTorch's needs have the headers: triton's those of the runtime, of which
  # NVIDIA's own wheel lacks some. They are for the tests: a package must not depend on whether its maker has a .venv.
  # clang-tidy's build has no tests, but wants the headers.
  set(ddprun_wheels "")
  set(ddprun_wheel_nvidia "")
  if(DDPRUN_BUILD_TESTS OR DDPRUN_FIND_WHEELS)
    file(GLOB ddprun_wheels ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages)
    file(GLOB ddprun_wheel_nvidia ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu*)
  endif()
  find_path(DDPRUN_CUDA_RUNTIME_DIR cuda_runtime_api.h
            HINTS /usr/local/cuda/include ENV CUDA_HOME ENV CUDA_PATH ${ddprun_wheels}
            PATH_SUFFIXES include triton/backends/nvidia/include)
  find_path(DDPRUN_NCCL_HEADER_DIR nccl.h HINTS /usr/local/cuda/include ${ddprun_wheels}
            ${DDPRUN_TORCH_ROOT}/../nvidia/nccl/include PATH_SUFFIXES nvidia/nccl/include)
  if(DDPRUN_CUDA_RUNTIME_DIR AND DDPRUN_NCCL_HEADER_DIR)
    set(DDPRUN_CUDA_INCLUDE_DIR ${DDPRUN_CUDA_RUNTIME_DIR})
    set(DDPRUN_NCCL_INCLUDE_DIR ${DDPRUN_NCCL_HEADER_DIR})
    # nccl.h includes CUDA's headers of half floats, and these CCCL's, which have a folder of their own in CUDA 13.
    find_path(DDPRUN_CCCL_DIR nv/target HINTS ${DDPRUN_CUDA_INCLUDE_DIR} ${DDPRUN_CUDA_INCLUDE_DIR}/cccl ${ddprun_wheel_nvidia}
              PATH_SUFFIXES include/cccl)
    set(DDPRUN_NCCL_INCLUDE_DIRS ${DDPRUN_NCCL_INCLUDE_DIR} ${DDPRUN_CUDA_INCLUDE_DIR})
    if(DDPRUN_CCCL_DIR)
      list(APPEND DDPRUN_NCCL_INCLUDE_DIRS ${DDPRUN_CCCL_DIR})
    endif()
  elseif(DDPRUN_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DDPRUN_WITH_CUDA=ON, but cuda_runtime_api.h or nccl.h was not found: "
                        "install the CUDA toolkit with NCCL, or use -DDDPRUN_WITH_CUDA=OFF")
  endif()
endif()

include(LibTorch)

function(ddprun_print_summary)
  message(STATUS "ddprun ${PROJECT_VERSION}")
  set(sanitizers ${DDPRUN_SANITIZE})
  if(NOT sanitizers)
    set(sanitizers none)
  endif()
  message(STATUS "  build type   ${CMAKE_BUILD_TYPE}, sanitizers: ${sanitizers}")
  message(STATUS "  Boost        ${Boost_VERSION} (${Boost_INCLUDE_DIRS})")
  message(STATUS "  OpenSSL      ${OPENSSL_VERSION} (${OPENSSL_INCLUDE_DIR})")
  if(DDPRUN_CUDA_INCLUDE_DIR)
    message(STATUS "  CUDA         ${DDPRUN_CUDA_INCLUDE_DIR}")
    message(STATUS "  NCCL header  ${DDPRUN_NCCL_INCLUDE_DIR}")
  else()
    message(STATUS "  CUDA, NCCL   off (headers not found or DDPRUN_WITH_CUDA=OFF)")
  endif()
  if(DDPRUN_TORCH_FOUND)
    message(STATUS "  LibTorch     ${DDPRUN_TORCH_VERSION} (${DDPRUN_TORCH_DIR})")
  else()
    message(STATUS "  LibTorch     off: ${DDPRUN_TORCH_WHY}")
  endif()
  if(ZLIB_FOUND)
    message(STATUS "  zlib         ${ZLIB_VERSION_STRING}")
  else()
    message(STATUS "  zlib         off: not found, so no train")
  endif()
  get_target_property(ncursesw ddprun_ncursesw INTERFACE_LINK_LIBRARIES)
  message(STATUS "  ncursesw     ${ncursesw}")
  if(DDPRUN_LIBDW_DIR)
    message(STATUS "  libdw        ${DDPRUN_LIBDW_DIR} (headers)")
  else()
    message(STATUS "  libdw        off: not found, so no native stacks of workers that hang")
  endif()
  if(DDPRUN_CCACHE)
    message(STATUS "  ccache       ${DDPRUN_CCACHE}")
  else()
    message(STATUS "  ccache       off (not found; it only makes a second build faster)")
  endif()
endfunction()
