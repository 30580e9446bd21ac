// SPDX-License-Identifier: Apache-2.0
#include "tests/support/seed.h"

#include <errno.h>  // program_invocation_short_name

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

std::vector<std::filesystem::path> kept;

std::filesystem::path path_in(const char* folder) {
  std::string name = program_invocation_short_name;
  name += "-" + Catch::getResultCapture().getCurrentTestName();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return std::filesystem::path(folder) / name;
}

std::uint64_t kept_or_new(const std::filesystem::path& path) {
  std::uint64_t seed = 0;
  if (std::ifstream(path) >> seed) return seed;
  seed = std::random_device()();
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << seed << "\n";
  return seed;
}

std::uint64_t choose() {
  if (const char* given = std::getenv("DDPRUN_TEST_SEED")) return std::stoull(given);
  const char* const folder = std::getenv("DDPRUN_TEST_SEEDS");
  if (folder == nullptr) return std::random_device()();
  kept.push_back(path_in(folder));
  return kept_or_new(kept.back());
}

}  // namespace

std::uint64_t seed() {
  const std::uint64_t chosen = choose();
  std::cout << "DDPRUN_TEST_SEED=" << chosen << std::endl;
  return chosen;
}

void forget_seeds() {
  for (const auto& path : kept) std::filesystem::remove(path);
}

}  // namespace ddprun::test
