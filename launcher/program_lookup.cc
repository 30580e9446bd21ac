// SPDX-License-Identifier: Apache-2.0
#include "launcher/program_lookup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "common/env_names.h"
#include "common/process_facts.h"
#include "common/text.h"

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
};

// Returns the first regular, executable file `name` in $PATH; empty: none.
std::string search_path(const std::string& name, std::string_view path, const FileSystem& files) {
  while (!path.empty()) {
    const std::string_view folder = take_until(path, ":");
    const std::string candidate = (folder.empty() ? "." : std::string(folder)) + "/" + name;
    if (files.kind(candidate) == Kind::kRegular && files.executable(candidate)) return candidate;
  }
  return "";
}

constexpr char kPackageMain[] = "/__main__.py";  // the file that Python runs for a directory

bool is_package(const std::string& path, const FileSystem& files) {
  return files.kind(path) == Kind::kDirectory && files.kind(path + kPackageMain) == Kind::kRegular;
}

// Returns the file or package that PROGRAM names; empty: none, and `problem` says why.
std::string find_file(const ProgramQuery& query, const FileSystem& files, std::string* problem) {
  const std::string& name = query.config.program;
  const Kind kind = files.kind(name);
  const bool has_slash = name.find('/') != std::string::npos;
  if (kind == Kind::kRegular || is_package(name, files) || (has_slash && kind == Kind::kOther)) {
    return has_slash ? name : "./" + name;
  }
  if (has_slash) {
    *problem = kind == Kind::kMissing ? "program not found: " + name
                                      : name + " is a directory, and has no __main__.py to run";
    return "";
  }
  const std::string beside = query.own_folder + "/" + name;
  if (!query.own_folder.empty() && files.kind(beside) == Kind::kRegular &&
      files.executable(beside)) {
    return beside;
  }
  std::string found = search_path(name, query.path, files);
  if (!found.empty()) return found;
  *problem = "program not found: " + name + " (looked here, beside ddprun and in PATH";
  if (kind == Kind::kDirectory) *problem += "; ./" + name + " is a directory without __main__.py";
  *problem += ")";
  return "";
}

// Returns the interpreter of ddprun's virtual or conda environment, found by the name by which
// ddprun was called. For torchrun this is the one that it was installed with. Empty: it is in none.
std::string python_beside(const ProgramQuery& query, const FileSystem& files) {
  const std::string called = query.argv0.find('/') == std::string::npos
                                 ? search_path(query.argv0, query.path, files)
                                 : query.argv0;
  const std::size_t slash = called.rfind('/');
  if (slash == std::string::npos) return "";
  const std::string folder = called.substr(0, slash);
  const bool is_environment = files.kind(folder + "/../pyvenv.cfg") == Kind::kRegular ||
                              files.kind(folder + "/../conda-meta") == Kind::kDirectory;
  const std::string python = folder + "/python3";
  const bool is_there = files.kind(python) == Kind::kRegular && files.executable(python);
  return is_environment && is_there ? python : "";
}

// Returns the Python interpreter and "-u"; empty: none, and `problem` says why.
std::vector<std::string> python(const ProgramQuery& query, const FileSystem& files,
                                std::string* problem) {
  std::string found = query.python_exec;
  if (found.empty()) found = python_beside(query, files);
  if (found.empty()) found = "python3";
  if (found.find('/') == std::string::npos) found = search_path(found, query.path, files);
  if (found.empty() || files.kind(found) != Kind::kRegular || !files.executable(found)) {
    *problem = query.python_exec.empty()
                   ? "no python3 in PATH to run " + query.config.program + " (set PYTHON_EXEC)"
                   : "PYTHON_EXEC=" + query.python_exec + " is no executable file";
    return {};
  }
  return {found, "-u"};
}

}  // namespace

bool is_torchrun(const std::string& argv0) {
  const std::size_t slash = argv0.rfind('/');
  return (slash == std::string::npos ? argv0 : argv0.substr(slash + 1)) == "torchrun";
}

Program find_program(const ProgramQuery& query, const FileSystem& files) {
  const LaunchConfig& config = query.config;
  Program result;
  result.is_torchruns = true;
  if (config.module && !config.run_path) {
    result.argv = python(query, files, &result.problem);
    if (!result.problem.empty()) return result;
    result.argv.insert(result.argv.end(), {"-m", config.program});
  } else {
    const std::string file = find_file(query, files, &result.problem);
    if (!result.problem.empty()) return result;
    const bool is_python = config.run_path || is_torchrun(query.argv0) || file.ends_with(".py") ||
                           files.kind(file) == Kind::kDirectory;
    const bool no_python = config.no_python && !config.run_path;
    if (no_python || (!is_python && files.executable(file))) {
      if (files.kind(file) != Kind::kRegular) {
        result.problem = file + " is not a regular file";
      } else if (!files.executable(file)) {
        result.problem = file + " is not executable (chmod +x)";
      }
      if (!result.problem.empty()) return result;
      result.argv = {file};
      result.is_torchruns = no_python;
    } else if (!files.readable(file)) {
      result.problem = file + " is neither executable nor readable";
      return result;
    } else {
      result.argv = python(query, files, &result.problem);
      if (!result.problem.empty()) return result;
      // Passed on as typed, as torchrun does: it becomes the script's sys.argv[0].
      const bool is_flag = config.program.starts_with('-');
      const bool is_here = file == "./" + config.program;
      result.argv.push_back(is_here && !is_flag ? config.program : file);
      result.script = files.kind(file) == Kind::kDirectory ? file + kPackageMain : file;
      if (!is_python) result.note = file + " is not executable: running it by " + result.argv[0];
    }
  }
  // In "SCRIPT -- ARGS" torchrun's parser removes the "--" after PROGRAM.
  const std::vector<std::string>& args = config.program_args;
  const bool is_cut = result.is_torchruns && !args.empty() && args.front() == "--";
  result.argv.insert(result.argv.end(), args.begin() + (is_cut ? 1 : 0), args.end());
  return result;
}

Program find_program(const LaunchConfig& config, const std::string& argv0,
                     const Environment& environment) {
  return find_program({.config = config,
                       .argv0 = argv0,
                       .own_folder = own_folder(),
                       .path = find_variable(environment, env::kPath).value_or("/bin:/usr/bin"),
                       .python_exec = find_variable(environment, env::kPythonExec).value_or("")},
                      RealFileSystem());
}

}  // namespace ddprun::launcher
