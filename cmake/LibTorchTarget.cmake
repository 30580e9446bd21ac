# SPDX-License-Identifier: Apache-2.0
# ddprun_add_libtorch(NAME DIRECTORY): an interface library over the LibTorch in DIRECTORY, the
# `torch` folder of a wheel or an unpacked libtorch, used as a CPU library. It does without
# find_package(Torch), which on the CUDA wheel wants nvcc or a GPU. Shared with ddprun-config.cmake.
function(ddprun_add_libtorch name directory)
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  foreach(library torch_cpu c10)
    # As imported targets: CMake then puts their directory into the programs' run path.
    add_library(ddprun_lib${library} SHARED IMPORTED GLOBAL)
    set_target_properties(ddprun_lib${library} PROPERTIES
      IMPORTED_LOCATION ${directory}/lib/lib${library}.so)
    target_link_libraries(${name} INTERFACE ddprun_lib${library})
  endforeach()
  # An imported target's folders are SYSTEM, and only files that use LibTorch see them: the wheel
  # bundles its own fmt headers.
  target_include_directories(${name} INTERFACE
    ${directory}/include ${directory}/include/torch/csrc/api/include)
endfunction()
