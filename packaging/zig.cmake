# SPDX-License-Identifier: Apache-2.0
# The toolchain of scripts/wheel.sh. Its programs run on any Linux with glibc ≥ 2.17. DDPRUN_WHEEL_TOOLS has the
# compiler's wrappers, DDPRUN_WHEEL_DEPENDENCIES the libraries, all of them static.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{DDPRUN_WHEEL_ARCHITECTURE})
foreach(tool cc c++ ar ranlib)
  set(zig_${tool} $ENV{DDPRUN_WHEEL_TOOLS}/zig-${tool})
endforeach()
set(DDPRUN_STATIC_TARGET -target ${CMAKE_SYSTEM_PROCESSOR}-linux-musl)
set(CMAKE_C_COMPILER ${zig_cc})
set(CMAKE_CXX_COMPILER ${zig_c++})
set(CMAKE_AR ${zig_ar} CACHE FILEPATH "")
set(CMAKE_RANLIB ${zig_ranlib} CACHE FILEPATH "")
# Keeps CMake away from this machine's own libraries and headers.
set(CMAKE_FIND_ROOT_PATH $ENV{DDPRUN_WHEEL_DEPENDENCIES})
foreach(kind INCLUDE LIBRARY PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(Boost_NO_BOOST_CMAKE ON)
set(DDPRUN_PLAIN_OPTIMISATION -Oz)
set(DDPRUN_ONE_PROGRAM ON)
