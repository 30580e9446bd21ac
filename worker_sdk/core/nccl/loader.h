// SPDX-License-Identifier: Apache-2.0
// Finds the real CUDA runtime and NCCL at run time. Nothing is linked: a program built with these
// files starts on a machine without any NVIDIA software.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// Load the library from the first of: $DDPRUN_CUDART_LIBRARY or $DDPRUN_NCCL_LIBRARY, a loaded
// copy (LibTorch's), the dynamic linker's path, the library folder beside the build's headers.
// Throw Error(kUnsupported) if built without the CUDA headers, or if a library can't be loaded
// (with the linker's own words for each try). The same for a missing function, a version before
// kMinVersion, $NCCL_COMM_BLOCKING other than 1, or $DDPRUN_NCCL_LIBRARY when another NCCL is
// loaded.
std::shared_ptr<CudaApi> load_cuda();
std::shared_ptr<NcclApi> load_nccl();

// Describes how to find a shared library at run time.
struct LibrarySearch {
  std::string what;                  // "the CUDA runtime", for messages
  const char* override_variable;     // environment variable with the full path of the file
  std::vector<std::string> names;    // sonames, best first
  std::vector<std::string> folders;  // tried after the dynamic linker's own path
  bool may_be_second = false;        // two copies in one process do no harm
};

// The library stays loaded for the life of the process: NCCL and CUDA run threads and exit handlers
// of their own.
class DynamicLibrary {
 public:
  // Opens the override, else a copy that is loaded already, also under a package's name for it
  // ("libcudart-1a2b3c4d.so.12"), else a file. Throws Error(kUnsupported) with every path tried and
  // the dynamic linker's answer. It also throws for an override when another copy is loaded, unless
  // may_be_second.
  static DynamicLibrary open(const LibrarySearch& search);

  // Returns nullptr if the library has no such function.
  void* find(const char* symbol) const;

  // As find(), but throws Error(kUnsupported) naming the symbol and the file.
  void* require(const char* symbol) const;

  const std::string& path() const { return path_; }  // of the file that was loaded

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  void* handle_;
  std::string path_;
};

}  // namespace ddprun::nccl
