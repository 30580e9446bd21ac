// SPDX-License-Identifier: Apache-2.0
// The users whose configuration is obeyed.
#include "common/config_texts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/error.h"
#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using ddprun::test::Contains;

namespace {

// A configuration file in a user's directory of configurations.
class Home {
 public:
  Home() {
    std::filesystem::create_directory(directory_.path("ddprun"));
    std::ofstream(path()) << "nnodes = 1\n";
    set_mode(0644);
  }
  std::string path() const { return directory_.path("ddprun/ddprun.toml"); }
  void set_mode(mode_t mode) { REQUIRE(::chmod(path().c_str(), mode) == 0); }
  void give_to(uid_t user, gid_t group) { REQUIRE(::chown(path().c_str(), user, group) == 0); }

  // The reason why the file is refused; empty: it was read. `is_named`: --config names it.
  std::string problem(bool is_named = false) const {
    try {
      const Environment environment = {
          {"XDG_CONFIG_HOME", is_named ? "/nonexistent" : directory_.path()}};
      const auto texts = read_config_texts(is_named ? path() : "", environment);
      REQUIRE(!texts.empty());
      CHECK(texts.front().path == path());
      return {};
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidArgument);
      return error.what();
    }
  }

 private:
  test::TempDirectory directory_;
};

}  // namespace

TEST_CASE("config_texts: a configuration that everybody may change is refused") {
  Home home;
  CHECK(home.problem() == "");
  home.set_mode(0664);  // the mode of systems on which each user has a group
  CHECK(home.problem() == "");
  home.set_mode(0666);
  CHECK(home.problem() == concat("won't obey ", home.path(),
                                 ": everybody could change it: make it yours or root's alone "
                                 "(chmod go-w), or set XDG_CONFIG_HOME"));
  CHECK(home.problem(true) == "");  // some file systems show all files with this mode
}

TEST_CASE(
    "config_texts: one that wasn't named is refused where another user or group may change it") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root gives files away");
  Home home;
  home.give_to(12345, 0);
  CHECK_THAT(home.problem(),
             Contains("it belongs to user 12345, who could change it: make it yours"));
  CHECK(home.problem(true) == "");
  home.give_to(0, 12345);
  CHECK(home.problem() == "");
  home.set_mode(0664);
  CHECK_THAT(home.problem(), Contains("group 12345 could change it: make it yours"));
  CHECK(home.problem(true) == "");
}
