// SPDX-License-Identifier: Apache-2.0
#include "common/secret.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/secret_file.h"

namespace ddprun {
namespace {

using ddprun::test::Contains;
using ddprun::test::write_secret_file;

std::string text_of(const Secret& secret) {
  return {reinterpret_cast<const char*>(secret.bytes().data()), secret.bytes().size()};
}

// "dd ht …": the kernel's flags of the mapping that has `address`.
std::string flags_of_mapping(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (line.find('-') < 17 && words >> std::hex >> begin >> dash >> end && dash == '-') {
      is_inside = begin <= wanted && wanted < end;
    } else if (is_inside && line.starts_with("VmFlags:")) {
      return line.substr(8) + " ";
    }
  }
  return "no such mapping";
}

TEST_CASE("Secret: a file's content without the white space around it") {
  const test::TempDirectory directory;
  const std::string path = directory.path("token");
  write_secret_file(path, " \t0123456789abcdef 0123\r\n\n");
  CHECK(text_of(*Secret::from_file(path)) == "0123456789abcdef 0123");
  write_secret_file(path, std::string(kMaxSecretBytes, 'x'));
  CHECK(text_of(*Secret::from_file(path)).size() == kMaxSecretBytes);
}

TEST_CASE("Secret: a link to nothing is told by where it leads") {
  const test::TempDirectory directory;
  std::filesystem::create_symlink("gone", directory.path("token"));
  CHECK_THAT(ddprun::test::error_of([&] { Secret::from_file(directory.path("token")); }).what(),
             Contains("token is a link to gone, which does not exist"));
}

TEST_CASE("Secret: the flag that named a bad file is told") {
  const test::TempDirectory directory;
  const std::string path = directory.path("token");
  CHECK_THROWS_WITH(Secret::from_flag("--token-file", path),
                    Contains("--token-file: can't take the secret in " + path));
  write_secret_file(path, "0123456789abcdef");
  CHECK(text_of(*Secret::from_flag("--token-file", path)) == "0123456789abcdef");
}

TEST_CASE("Secret: a file that gives no secret is refused, and it is said what to do") {
  const test::TempDirectory directory;
  const std::string path = directory.path("token");
  CHECK_THROWS_WITH(Secret::from_file(path), Contains(path) && Contains("No such file"));
  CHECK_THROWS_WITH(Secret::from_file(directory.path()), Contains("no regular file"));
  write_secret_file(path, "");
  CHECK_THROWS_WITH(Secret::from_file(path), Contains("it has 0 bytes, and needs at least 16"));
  write_secret_file(path, "    0123456789abcde    \n");
  CHECK_THROWS_WITH(Secret::from_file(path),
                    Contains("it has 15 bytes") && Contains("openssl rand"));
  write_secret_file(path, std::string(kMaxSecretBytes + 1, 'x'));
  CHECK_THROWS_WITH(Secret::from_file(path), Contains("more than 2048 bytes"));
}

TEST_CASE("Secret: a file that others may read or change is refused") {
  const test::TempDirectory directory;
  const std::string path = directory.path("token");
  for (const mode_t mode : {0644, 0604, 0620, 0602, 0660, 0610}) {
    write_secret_file(path, "0123456789abcdef", mode);
    CHECK_THROWS_WITH(Secret::from_file(path), Contains("others may read or change it (mode 0") &&
                                                   Contains("chmod 600 " + path));
  }
  write_secret_file(path, "0123456789abcdef", 0640);
  if (::geteuid() == 0) {
    // root's file, readable by a service's group.
    CHECK(Secret::from_file(path)->bytes().size() == 16);
    REQUIRE(::chown(path.c_str(), 1234, 1234) == 0);
    CHECK_THROWS_WITH(Secret::from_file(path), Contains("it belongs to user 1234"));
  } else {
    CHECK_THROWS_WITH(Secret::from_file(path),
                      Contains("others may read or change it (mode 0640)"));
  }
}

TEST_CASE("Secret: its page is in no core dump and in no forked child") {
  const auto secret = test::secret_of("0123456789abcdef");
  const std::string flags = flags_of_mapping(secret->bytes().data());
  CHECK_THAT(flags, Contains(" dd ") && Contains(" wf "));
  const int other = 0;
  CHECK_THAT(flags_of_mapping(&other), !Contains(" dd "));
}

}  // namespace
}  // namespace ddprun
