// SPDX-License-Identifier: Apache-2.0
// Compares bytes that other versions read with those that were stored once.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::test {

// Checks that `lines` are those of `file`. With $DDPRUN_NEW_GOLDEN set, the file is written anew,
// and the test fails all the same: the change of bytes is for the reviewer to see.
inline void check_golden(const std::string& file, const std::vector<std::string>& lines) {
  std::vector<std::string> stored;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) stored.push_back(line);
  if (std::getenv("DDPRUN_NEW_GOLDEN") != nullptr) {
    std::ofstream out(file);
    for (const std::string& line : lines) out << line << '\n';
    FAIL(file << " is written anew");
  }
  INFO("bytes that other versions read have changed: compare " << file);
  CHECK(lines == stored);
}

}  // namespace ddprun::test
