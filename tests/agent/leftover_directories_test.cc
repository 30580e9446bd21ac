// SPDX-License-Identifier: Apache-2.0
#include "agent/agent_socket.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun::agent;
namespace fs = std::filesystem;

TEST_CASE("leftover directories: one whose agent lives stays, with its files it goes afterwards") {
  const ddprun::test::TempDirectory parent;
  const std::string path = new_directory_name(parent.path());
  std::optional<ddprun::UniqueFd> lock = make_locked_directory(path);
  std::ofstream(path + "/agent.sock") << "left";
  CHECK((fs::status(path).permissions() & fs::perms::all) == fs::perms::owner_all);
  remove_leftover_directories(parent.path());
  CHECK(fs::exists(path));
  lock.reset();
  remove_leftover_directories(parent.path());
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("leftover directories: a directory of another name, a file and a link stay") {
  const ddprun::test::TempDirectory parent, elsewhere;
  const fs::path begin = fs::path(parent.path()) / "ddprun-";
  fs::create_directory(begin.string() + "0123456789ab0");
  fs::create_directory(begin.string() + "0123456789ag");
  std::ofstream(begin.string() + "0123456789ab") << "a file";
  fs::create_directory_symlink(elsewhere.path(), begin.string() + "0123456789ac");
  remove_leftover_directories(parent.path());
  CHECK(std::distance(fs::directory_iterator(parent.path()), fs::directory_iterator()) == 4);
  CHECK(fs::exists(elsewhere.path()));
  remove_leftover_directories(std::string(parent.path()) + "/missing");
}
