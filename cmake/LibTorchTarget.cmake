# SPDX-License-Identifier: Apache-2.0
# ddprun_add_libtorch(NAME DIRECTORY): an interface library over the LibTorch in DIRECTORY, the
# `torch` folder of a wheel or an unpacked libtorch, used as a CPU library. It doesn't use
# find_package(Torch), which needs nvcc or a GPU with the CUDA wheel. ddprun-config.cmake uses this file, too.
function(ddprun_add_libtorch name directory)
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  foreach(library torch_cpu c10)
    # For imported targets CMake puts their directory into the programs' run path.
    add_library(ddprun_lib${library} SHARED IMPORTED GLOBAL)
    set_target_properties(ddprun_lib${library} PROPERTIES
      IMPORTED_LOCATION ${directory}/lib/lib${library}.so)
    target_link_libraries(${name} INTERFACE ddprun_lib${library})
  endforeach()
  # An imported target's include folders are SYSTEM. Only files that use LibTorch see them, because the wheel
  # bundles its own fmt headers.
  target_include_directories(${name} INTERFACE
    ${directory}/include ${directory}/include/torch/csrc/api/include)
endfunction()
