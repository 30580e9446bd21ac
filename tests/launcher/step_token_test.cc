// SPDX-License-Identifier: Apache-2.0
#include "launcher/step_token.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/secret_file.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using ddprun::test::Contains;
using ddprun::test::TempDirectory;

const std::string kToken(64, 'a');

std::string text_of(const StepToken& token) {
  const auto bytes = token.secret->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

std::string error_with(const std::string& folder) {
  return ddprun::test::error_of([&] { agree_on_token(folder, "step"); }).what();
}

}  // namespace

TEST_CASE("step token: nodes that make it at once agree on one, that nobody else can read") {
  const TempDirectory directory;
  const std::string folder = directory.path("ddprun");
  constexpr std::size_t kNodes = 16;
  std::vector<std::string> texts(kNodes);
  {
    std::vector<std::jthread> nodes;
    for (std::string& text : texts) {
      nodes.emplace_back([&] { text = text_of(agree_on_token(folder, "step")); });
    }
  }
  CHECK(texts.front().size() == 64);
  CHECK(std::set<std::string>(texts.begin(), texts.end()).size() == 1);
  CHECK(names_in(folder) == std::set<std::string>{"step"});
  const auto mode = [](const std::string& path) {
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    return info.st_mode & 07777;
  };
  CHECK(mode(folder) == 0700);
  CHECK(mode(folder + "/step") == 0600);
  CHECK(text_of(agree_on_token(folder, "other step")) != texts.front());
}

TEST_CASE("step token: one that was removed is made anew") {
  const TempDirectory directory;
  const std::string folder = directory.path("ddprun");
  const StepToken first = agree_on_token(folder, "step");
  remove_step_token(first.path);
  CHECK(text_of(agree_on_token(folder, "step")) != text_of(first));
}

TEST_CASE("step token: a file that others could read or change is refused, and none is left") {
  const TempDirectory directory;
  const std::string folder = directory.path("ddprun"), path = folder + "/step";
  fs::create_directory(folder);
  SECTION("by its mode") {
    test::write_secret_file(path, kToken, 0644);
    CHECK_THAT(error_with(folder), Contains(path) && Contains("mode 0644"));
  }
  SECTION("by its owner") {
    if (::geteuid() != 0) DDPRUN_SKIP("only root gives files away");
    test::write_secret_file(path, kToken);
    REQUIRE(::chown(path.c_str(), 1234, 1234) == 0);
    CHECK_THAT(error_with(folder), Contains(path) && Contains("it belongs to user 1234"));
  }
  CHECK(names_in(folder) == std::set<std::string>{"step"});
}

TEST_CASE("step token: a folder that others could change, or that can't be, is refused") {
  const TempDirectory directory;
  const std::string folder = directory.path("ddprun");
  SECTION("by its mode") {
    fs::create_directory(folder);
    REQUIRE(::chmod(folder.c_str(), 0770) == 0);
    CHECK(error_with(folder) == folder + ": others may change it: chmod 700 it");
  }
  SECTION("by its owner") {
    if (::geteuid() != 0) DDPRUN_SKIP("only root gives files away");
    fs::create_directory(folder);
    REQUIRE(::chown(folder.c_str(), 1234, 1234) == 0);
    CHECK(error_with(folder) == folder + ": it belongs to user 1234");
  }
  SECTION("a link, which another user may have made") {
    fs::create_directory(directory.path("elsewhere"));
    fs::create_directory_symlink("elsewhere", folder);
    CHECK(error_with(folder) == folder + ": it is no directory");
  }
  SECTION("without the one above") {
    const std::string lost = folder + "/ddprun-0";
    CHECK(error_with(lost) == lost + ": No such file or directory");
  }
}

TEST_CASE("step token: its folder is the one that is told, or a cache that nodes share") {
  const std::uint64_t nfs = 0x6969, ext4 = 0xef53;
  std::map<std::string, std::uint64_t> types = {{"/", ext4}, {"/home/a", nfs}, {"/cache", ext4}};
  const auto folder = [&](const Environment& environment) {
    return shared_folder(environment, 1000, [&](const std::string& path) {
      const auto found = types.find(path);
      return found == types.end() ? std::nullopt : std::optional(found->second);
    });
  };
  const Environment home = {{"HOME", "/home/a"}};
  CHECK(folder(home) == "/home/a/.cache/ddprun");
  CHECK(folder({{"HOME", "/home/a"}, {"DDPRUN_SHARED_DIR", "/scratch"}}) == "/scratch/ddprun-1000");
  CHECK_FALSE(folder({{"HOME", "/home/a"}, {"DDPRUN_SHARED_DIR", ""}}));
  CHECK_FALSE(folder({{"HOME", "/home/a"}, {"XDG_CACHE_HOME", "/cache/a"}}));
  CHECK_FALSE(folder({{"HOME", "/root"}}));
  CHECK_FALSE(folder({{"HOME", "home/a"}}));
  CHECK_FALSE(folder({}));
  types["/home/a/.cache"] = ext4;  // this file system is the node's own
  CHECK_FALSE(folder(home));
  for (const std::uint64_t type :
       {0x6969u, 0x0bd00bd0u, 0x47504653u, 0x19830326u, 0x00c36400u, 0xfe534d42u, 0xff534d42u,
        0x5346414fu, 0xaad7aaeau, 0x20030528u}) {
    CHECK(is_network_file_system(type));
  }
  for (const std::uint64_t type : {0xef53u, 0x58465342u, 0x01021994u, 0x794c7630u, 0x65735546u}) {
    CHECK_FALSE(is_network_file_system(type));  // e.g. ext4, XFS, tmpfs, overlayfs, FUSE
  }
}

TEST_CASE("step token: each step, and each run of it, has a name of its own") {
  Environment step = {{"SLURM_JOB_ID", "77"}};
  CHECK(step_token_name(step).empty());
  step["SLURM_STEP_ID"] = "0";
  CHECK(step_token_name(step) == "slurm--77.0-0");
  step["SLURM_CLUSTER_NAME"] = "a/b";
  step["SLURM_RESTART_COUNT"] = "2";
  CHECK(step_token_name(step) == "slurm-a_b-77.0-2");
}

}  // namespace ddprun::launcher
