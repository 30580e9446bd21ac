// SPDX-License-Identifier: Apache-2.0
#include "launcher/program_lookup.h"

#include <map>

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using Argv = std::vector<std::string>;
using ddprun::test::Contains;

namespace {

// Path → "rx#d": readable, executable, has "#!", is a directory.
struct FakeFiles : FileSystem {
  // "./x" and "x" are one file.
  static std::string plain(const std::string& path) {
    return path.starts_with("./") ? path.substr(2) : path;
  }
  explicit FakeFiles(std::map<std::string, std::string> files) : files_(std::move(files)) {}
  bool has(const std::string& path, char what) const {
    const auto found = files_.find(plain(path));
    return found != files_.end() && found->second.find(what) != std::string::npos;
  }
  Kind kind(const std::string& path) const override {
    if (!files_.contains(plain(path))) return Kind::kMissing;
    return has(path, 'd') ? Kind::kDirectory : Kind::kRegular;
  }
  bool readable(const std::string& path) const override { return has(path, 'r'); }
  bool executable(const std::string& path) const override { return has(path, 'x'); }
  bool has_interpreter_line(const std::string& path) const override { return has(path, '#'); }
  std::map<std::string, std::string> files_;
};

const FakeFiles kFiles({{"train.py", "r"},
                        {"tool.py", "rx#"},
                        {"bare.py", "rx"},
                        {"notes", "r"},
                        {"secret", ""},
                        {"src", "rxd"},
                        {"/opt/ddprun/train", "rx"},
                        {"/usr/bin/true", "rx"},
                        {"/usr/bin/src", "rx"},
                        {"/usr/bin/python3", "rx"},
                        {"/opt/python", "rx"}});

Program find(const std::string& name, Argv args = {}, bool module = false, bool no_python = false,
             const std::string& argv0 = "ddprun", const std::string& python_exec = "") {
  LaunchConfig config;
  config.program = name;
  config.program_args = std::move(args);
  config.module = module;
  config.no_python = no_python;
  const ProgramQuery query{.config = config,
                           .argv0 = argv0,
                           .own_folder = "/opt/ddprun",
                           .path = "/bin:/usr/bin",
                           .python_exec = python_exec};
  return find_program(query, kFiles);
}

}  // namespace

TEST_CASE("program: executable → executed, readable → python -u") {
  CHECK(find("/usr/bin/true", {"-x"}).argv == Argv{"/usr/bin/true", "-x"});
  CHECK(find("train.py", {"--lr", "1"}).argv ==
        Argv{"/usr/bin/python3", "-u", "./train.py", "--lr", "1"});
  CHECK(find("train.py").note.empty());
  CHECK(find("tool.py").argv == Argv{"./tool.py"});
  CHECK(find("bare.py").argv == Argv{"/usr/bin/python3", "-u", "./bare.py"});
  CHECK_THAT(find("notes").note, Contains("running it by /usr/bin/python3"));
}

TEST_CASE("program: a name is looked for here, beside ddprun, then in PATH, never a directory") {
  CHECK(find("train").argv == Argv{"/opt/ddprun/train"});
  CHECK(find("true").argv == Argv{"/usr/bin/true"});
  CHECK(find("src").argv == Argv{"/usr/bin/src"});
}

TEST_CASE("program: -m, --no-python, PYTHON_EXEC and torchrun's name") {
  CHECK(find("pkg.mod", {"a"}, true).argv == Argv{"/usr/bin/python3", "-u", "-m", "pkg.mod", "a"});
  CHECK_THAT(find("train.py", {}, false, true).problem, Contains("not executable"));
  CHECK(find("bare.py", {}, false, true).argv == Argv{"./bare.py"});
  CHECK(find("tool.py", {}, false, false, "/bin/torchrun").argv ==
        Argv{"/usr/bin/python3", "-u", "./tool.py"});
  CHECK(find("train.py", {}, false, false, "ddprun", "/opt/python").argv[0] == "/opt/python");
  CHECK_THAT(find("train.py", {}, false, false, "ddprun", "/opt/none").problem,
             Contains("PYTHON_EXEC=/opt/none"));
}

TEST_CASE("program: what can't run is one clear line") {
  CHECK_THAT(find("nosuch").problem, Contains("not found: nosuch") && Contains("PATH"));
  CHECK_THAT(find("./nosuch").problem, Contains("not found: ./nosuch"));
  CHECK_THAT(find("secret").problem, Contains("neither executable nor readable"));
  const std::map<std::string, std::string> folder = {{"src", "rxd"}};
  const FakeFiles only_folder(folder);
  LaunchConfig config;
  config.program = "./src";
  const ProgramQuery query{
      .config = config, .argv0 = "", .own_folder = "", .path = "", .python_exec = ""};
  CHECK_THAT(find_program(query, only_folder).problem, Contains("is a directory"));
}
