// SPDX-License-Identifier: Apache-2.0
// The real CUDA runtime and NCCL, found at run time. Nothing is linked: a program built with these
// files starts on a machine with no NVIDIA software at all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// Search order, each: $DDPRUN_CUDART_LIBRARY / $DDPRUN_NCCL_LIBRARY, the copy that is loaded
// already (LibTorch's), the dynamic linker's path, the library folder beside the headers of the
// build. Throws Error(kUnsupported): it was built without the CUDA headers, or a library can't be
// loaded (with the linker's own words for each try). The same for a missing function, a version
// before kMinVersion, or $DDPRUN_NCCL_LIBRARY beside another NCCL that is loaded.
std::shared_ptr<CudaApi> load_cuda();
std::shared_ptr<NcclApi> load_nccl();

// A shared library opened at run time.
struct LibrarySearch {
  std::string what;                  // "the CUDA runtime", for messages
  const char* override_variable;     // environment variable with the full path of the file
  std::vector<std::string> names;    // sonames, best first
  std::vector<std::string> folders;  // tried after the dynamic linker's own path
  bool may_be_second = false;        // two in one process do no harm
};

// Stays loaded for the life of the process: NCCL and CUDA run threads and exit handlers of their
// own.
class DynamicLibrary {
 public:
  // The override, else a copy that is loaded already, under the name that a package gave it
  // ("libcudart-1a2b3c4d.so.12"), too, else a file. Throws Error(kUnsupported) with every path
  // tried and the dynamic linker's answer; for an override beside another copy that is loaded,
  // unless may_be_second.
  static DynamicLibrary open(const LibrarySearch& search);

  // nullptr: the library has no such function.
  void* find(const char* symbol) const;

  // Throws Error(kUnsupported) naming the symbol and the file.
  void* require(const char* symbol) const;

  const std::string& path() const { return path_; }  // of the file that was loaded

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  void* handle_;
  std::string path_;
};

}  // namespace ddprun::nccl
