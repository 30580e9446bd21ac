// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "common/error.h"
#include "common/regular_file.h"
#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
namespace fs = std::filesystem;

namespace {

constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
constexpr uid_t kLinkOwner = 12345;

bool writes_to(const std::string& path) { return bool(open_to_write(path, kFlags, 0600)); }

}  // namespace

TEST_CASE("open_to_write: own links are followed, however many, also to what is not there yet",
          "[proc]") {
  const test::TempDirectory temp;
  fs::create_directory(temp.path("folder"));
  fs::create_symlink("folder/file", temp.path("b"));
  fs::create_symlink(temp.path("b"), temp.path("a"));
  CHECK(writes_to(temp.path("a")));
  CHECK(fs::is_regular_file(fs::symlink_status(temp.path("folder/file"))));
  CHECK(writes_to(temp.path("plain")));
}

TEST_CASE("open_to_write: a link that leads to itself, or nowhere, is told by errno", "[proc]") {
  const test::TempDirectory temp;
  fs::create_symlink("loop", temp.path("loop"));
  fs::create_symlink("no/file", temp.path("nowhere"));
  CHECK_FALSE(writes_to(temp.path("loop")));
  CHECK(opening_trouble(temp.path("loop"), errno) == errno_text(ELOOP));
  CHECK_FALSE(writes_to(temp.path("nowhere")));
  CHECK(errno == ENOENT);
}

TEST_CASE("open_to_write: a descriptor's name leads to what is open", "[proc]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  CHECK(writes_to(concat("/dev/fd/", writer.get())));
}

TEST_CASE("open_to_write: a link of another user is not followed, and named", "[proc]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root gives links away");
  const test::TempDirectory temp;
  std::ofstream(temp.path("precious")) << "precious";
  for (const char* name : {"link", "own"}) fs::create_symlink("precious", temp.path(name));
  REQUIRE(::lchown(temp.path("link").c_str(), kLinkOwner, kLinkOwner) == 0);
  fs::create_symlink("link", temp.path("to_link"));
  CHECK(writes_to(temp.path("own")));
  for (const char* name : {"link", "to_link"}) {
    CHECK_FALSE(writes_to(temp.path(name)));
    CHECK(errno == ELOOP);
  }
  const RegularFile file = open_regular_file_to_append(temp.path("link"), 0600, O_TRUNC);
  CHECK_FALSE(file.fd);
  CHECK(file.problem == "it is a link of user 12345, who could lead it anywhere");
  CHECK(fs::file_size(temp.path("precious")) == 8);
}
