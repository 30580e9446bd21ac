// SPDX-License-Identifier: Apache-2.0
// A test's own directory.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/error.h"

namespace ddprun::test {

// An empty directory. It is removed with its content at the end of the scope, even if the test
// fails.
class TempDirectory {
 public:
  TempDirectory() : path_(std::filesystem::temp_directory_path() / "ddprun-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw_system_error("mkdtemp " + path_, errno);
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace ddprun::test
