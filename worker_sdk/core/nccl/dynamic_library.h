// SPDX-License-Identifier: Apache-2.0
// A shared library opened at run time.
#pragma once

#include <string>
#include <vector>

namespace ddprun::nccl {

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
  DynamicLibrary(void* handle, std::string path);

  void* handle_;
  std::string path_;
};

}  // namespace ddprun::nccl
