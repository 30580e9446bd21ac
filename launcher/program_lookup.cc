// SPDX-License-Identifier: Apache-2.0
#include "launcher/program_lookup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

using Kind = FileSystem::Kind;

class RealFileSystem : public FileSystem {
 public:
  Kind kind(const std::string& path) const override {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return Kind::kMissing;
    if (S_ISREG(info.st_mode)) return Kind::kRegular;
    return S_ISDIR(info.st_mode) ? Kind::kDirectory : Kind::kOther;
  }
  bool readable(const std::string& path) const override {
    return ::access(path.c_str(), R_OK) == 0;
  }
  bool executable(const std::string& path) const override {
    return ::access(path.c_str(), X_OK) == 0;
  }
  bool has_interpreter_line(const std::string& path) const override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char start[2];
    return fd && ::read(fd.get(), start, 2) == 2 && start[0] == '#' && start[1] == '!';
  }
};

// First regular, executable file `name` in $PATH; empty: none.
std::string search_path(const std::string& name, std::string_view path, const FileSystem& files) {
  while (!path.empty()) {
    const std::size_t colon = path.find(':');
    const std::string_view folder = path.substr(0, colon);
    const std::string candidate = (folder.empty() ? "." : std::string(folder)) + "/" + name;
    if (files.kind(candidate) == Kind::kRegular && files.executable(candidate)) return candidate;
    path.remove_prefix(colon == std::string_view::npos ? path.size() : colon + 1);
  }
  return "";
}

// The file that PROGRAM names; empty, with the problem worded: none.
std::string find_file(const ProgramQuery& query, const FileSystem& files, std::string* problem) {
  const std::string& name = query.config.program;
  if (name.find('/') != std::string::npos) {
    switch (files.kind(name)) {
      case Kind::kRegular:
        return name;
      case Kind::kMissing:
        *problem = "program not found: " + name;
        break;
      case Kind::kDirectory:
        *problem = name + " is a directory, not a program";
        break;
      case Kind::kOther:
        *problem = name + " is not a regular file";
        break;
    }
    return "";
  }
  if (files.kind(name) == Kind::kRegular) return "./" + name;
  const std::string beside = query.own_folder + "/" + name;
  if (!query.own_folder.empty() && files.kind(beside) == Kind::kRegular &&
      files.executable(beside)) {
    return beside;
  }
  std::string found = search_path(name, query.path, files);
  if (!found.empty()) return found;
  *problem = "program not found: " + name + " (looked here, beside ddprun and in PATH";
  if (files.kind(name) == Kind::kDirectory) *problem += "; ./" + name + " is a directory";
  *problem += ")";
  return "";
}

// The Python interpreter with "-u"; empty, with the problem worded: none.
std::vector<std::string> python(const ProgramQuery& query, const FileSystem& files,
                                std::string* problem) {
  const std::string& wanted = query.python_exec.empty() ? "python3" : query.python_exec;
  const bool has_slash = wanted.find('/') != std::string::npos;
  const std::string found = has_slash ? wanted : search_path(wanted, query.path, files);
  if (found.empty() || files.kind(found) != Kind::kRegular || !files.executable(found)) {
    *problem = query.python_exec.empty()
                   ? "no python3 in PATH to run " + query.config.program + " (set PYTHON_EXEC)"
                   : "PYTHON_EXEC=" + query.python_exec + " is no executable file";
    return {};
  }
  return {found, "-u"};
}

bool is_torchrun(const std::string& argv0) {
  const std::size_t slash = argv0.rfind('/');
  return (slash == std::string::npos ? argv0 : argv0.substr(slash + 1)) == "torchrun";
}

}  // namespace

const FileSystem& real_file_system() {
  static const RealFileSystem instance;
  return instance;
}

Program find_program(const ProgramQuery& query, const FileSystem& files) {
  const LaunchConfig& config = query.config;
  Program result;
  if (config.module) {
    result.argv = python(query, files, &result.problem);
    if (!result.problem.empty()) return result;
    result.argv.insert(result.argv.end(), {"-m", config.program});
  } else {
    const std::string file = find_file(query, files, &result.problem);
    if (!result.problem.empty()) return result;
    // An executable script without "#!" is nobody's: the kernel refuses it, a .py is python's.
    const bool bare_script =
        file.ends_with(".py") && files.executable(file) && !files.has_interpreter_line(file);
    const bool execute =
        config.no_python || (files.executable(file) && !bare_script && !is_torchrun(query.argv0));
    if (execute) {
      if (!files.executable(file)) {
        result.problem = file + " is not executable (chmod +x)";
        return result;
      }
      result.argv = {file};
    } else if (!files.readable(file)) {
      result.problem = file + " is neither executable nor readable";
    } else {
      result.argv = python(query, files, &result.problem);
      if (!result.problem.empty()) return result;
      result.argv.push_back(file);
      result.script = file;
      if (!file.ends_with(".py") && !is_torchrun(query.argv0)) {
        result.note = file + " is not executable: running it by " + result.argv[0];
      }
    }
  }
  result.argv.insert(result.argv.end(), config.program_args.begin(), config.program_args.end());
  return result;
}

}  // namespace ddprun::launcher
