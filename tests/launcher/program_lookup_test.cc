// SPDX-License-Identifier: Apache-2.0
#include "launcher/program_lookup.h"

#include <map>

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using Argv = std::vector<std::string>;
using ddprun::test::Contains;

namespace {

// Path → "rxdo": readable, executable, is a directory, is something else (a pipe, a device).
struct FakeFiles : FileSystem {
  // "./x" and "x" name the same file.
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
    if (has(path, 'o')) return Kind::kOther;
    return has(path, 'd') ? Kind::kDirectory : Kind::kRegular;
  }
  bool readable(const std::string& path) const override { return has(path, 'r'); }
  bool executable(const std::string& path) const override { return has(path, 'x'); }
  std::map<std::string, std::string> files_;
};

const FakeFiles kOnPath({{"train.py", "r"},
                         {"tool.py", "rx"},
                         {"-odd.py", "r"},
                         {"notes", "r"},
                         {"secret", ""},
                         {"src", "rxd"},
                         {"pkg", "rxd"},
                         {"pkg/__main__.py", "r"},
                         {"/dev/stdin", "ro"},
                         {"/opt/ddprun/train", "rx"},
                         {"/usr/bin/true", "rx"},
                         {"/usr/bin/src", "rx"},
                         {"/usr/bin/python3", "rx"},
                         {"/usr/bin/torchrun", "rx"},
                         {"/usr/bin/tool", "rx"},
                         {"/venv/bin/ddprun", "rx"},
                         {"/venv/bin/python3", "rx"},
                         {"/venv/bin/../pyvenv.cfg", "r"},
                         {"/conda/bin/torchrun", "rx"},
                         {"/conda/bin/python3", "rx"},
                         {"/conda/bin/../conda-meta", "rxd"},
                         {"/opt/python", "rx"}});

Program find(const std::string& name, Argv args = {}, bool module = false, bool no_python = false,
             const std::string& argv0 = "ddprun", const std::string& python_exec = "",
             const std::string& path = "/bin:/usr/bin") {
  LaunchConfig config;
  config.program = name;
  config.program_args = std::move(args);
  config.module = module;
  config.no_python = no_python;
  const ProgramQuery query{.config = config,
                           .argv0 = argv0,
                           .own_folder = "/opt/ddprun",
                           .path = path,
                           .python_exec = python_exec};
  return find_program(query, kOnPath);
}

}  // namespace

TEST_CASE("program: *.py → python -u with the name as typed, executable → executed") {
  CHECK(find("/usr/bin/true", {"-x"}).argv == Argv{"/usr/bin/true", "-x"});
  CHECK_FALSE(find("/usr/bin/true").is_torchruns);
  CHECK(find("/usr/bin/true", {}, false, true).is_torchruns);
  CHECK(find("train.py").is_torchruns);
  CHECK(find("train.py", {"--lr", "1"}).argv ==
        Argv{"/usr/bin/python3", "-u", "train.py", "--lr", "1"});
  CHECK(find("train.py").script == "./train.py");
  CHECK(find("train.py").note.empty());
  CHECK(find("tool.py").argv == Argv{"/usr/bin/python3", "-u", "tool.py"});
  CHECK(find("./tool.py").argv.back() == "./tool.py");
  CHECK(find("-odd.py").argv.back() == "./-odd.py");
  CHECK(find("notes").argv == Argv{"/usr/bin/python3", "-u", "notes"});
  CHECK_THAT(find("notes").note, Contains("running it by /usr/bin/python3"));
  CHECK(find("/dev/stdin").argv == Argv{"/usr/bin/python3", "-u", "/dev/stdin"});
}

TEST_CASE("program: a name is looked for here, beside ddprun, then in PATH") {
  CHECK(find("train").argv == Argv{"/opt/ddprun/train"});
  CHECK(find("true").argv == Argv{"/usr/bin/true"});
  CHECK(find("src").argv == Argv{"/usr/bin/src"});
}

TEST_CASE("program: a directory is one where Python finds its __main__.py") {
  CHECK(find("pkg", {"a"}).argv == Argv{"/usr/bin/python3", "-u", "pkg", "a"});
  CHECK(find("./pkg").argv.back() == "./pkg");
  CHECK(find("./pkg").script == "./pkg/__main__.py");
  CHECK(find("pkg").note.empty());
  CHECK_THAT(find("./src").problem, Contains("is a directory") && Contains("__main__.py"));
}

TEST_CASE("program: -m, --no-python, --run-path, PYTHON_EXEC and torchrun's name") {
  CHECK(find("pkg.mod", {"a"}, true).argv == Argv{"/usr/bin/python3", "-u", "-m", "pkg.mod", "a"});
  CHECK_THAT(find("train.py", {}, false, true).problem, Contains("not executable"));
  CHECK(find("tool.py", {}, false, true).argv == Argv{"./tool.py"});
  CHECK_THAT(find("/dev/stdin", {}, false, true).problem, Contains("not a regular file"));
  CHECK(find("/usr/bin/tool", {}, false, false, "/bin/torchrun").argv ==
        Argv{"/usr/bin/python3", "-u", "/usr/bin/tool"});
  CHECK(find("train.py", {}, false, false, "ddprun", "/opt/python").argv[0] == "/opt/python");
  CHECK(find("tool.py", {}, false, false, "ddprun", "/opt/python").argv[0] == "/opt/python");
  CHECK_THAT(find("train.py", {}, false, false, "ddprun", "/opt/none").problem,
             Contains("PYTHON_EXEC=/opt/none"));
  LaunchConfig config;
  config.program = "/usr/bin/tool";
  config.run_path = config.no_python = true;
  const ProgramQuery query{
      .config = config, .argv0 = "", .own_folder = "", .path = "/usr/bin", .python_exec = ""};
  CHECK(find_program(query, kOnPath).argv == Argv{"/usr/bin/python3", "-u", "/usr/bin/tool"});
}

TEST_CASE("program: one -- behind PROGRAM is the parser's where torchrun would run it") {
  CHECK(find("train.py", {"--", "--lr"}).argv ==
        Argv{"/usr/bin/python3", "-u", "train.py", "--lr"});
  CHECK(find("train.py", {"--", "--"}).argv == Argv{"/usr/bin/python3", "-u", "train.py", "--"});
  CHECK(find("train.py", {"a", "--"}).argv ==
        Argv{"/usr/bin/python3", "-u", "train.py", "a", "--"});
  CHECK(find("mod", {"--", "a"}, true).argv == Argv{"/usr/bin/python3", "-u", "-m", "mod", "a"});
  CHECK(find("tool", {"--", "a"}, false, true).argv == Argv{"/usr/bin/tool", "a"});
  CHECK(find("tool", {"--", "a"}).argv == Argv{"/usr/bin/tool", "--", "a"});
}

TEST_CASE("program: the Python of the environment in which ddprun lies comes first") {
  const auto python = [](const std::string& argv0, const std::string& path = "/usr/bin") {
    return find("train.py", {}, false, false, argv0, "", path).argv[0];
  };
  CHECK(python("/venv/bin/ddprun") == "/venv/bin/python3");
  CHECK(python("/conda/bin/torchrun") == "/conda/bin/python3");
  CHECK(python("ddprun", "/venv/bin:/usr/bin") == "/venv/bin/python3");
  // ddprun is in no environment, so the first Python in the user's PATH is taken, an active
  // environment's.
  CHECK(python("/usr/bin/torchrun", "/venv/bin:/usr/bin") == "/venv/bin/python3");
  CHECK(python("/usr/bin/torchrun") == "/usr/bin/python3");
  CHECK(python("nosuch") == "/usr/bin/python3");
}

TEST_CASE("program: a program that can't run is one clear line") {
  CHECK_THAT(find("nosuch").problem, Contains("not found: nosuch") && Contains("PATH"));
  CHECK_THAT(find("./nosuch").problem, Contains("not found: ./nosuch"));
  CHECK_THAT(find("secret").problem, Contains("neither executable nor readable"));
}
