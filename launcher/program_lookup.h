// SPDX-License-Identifier: Apache-2.0
// Finds what to execute for PROGRAM as typed. Pure, with a small interface to the file system; only
// the last function asks this machine.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

// Questions about files, which tests can answer instead.
class FileSystem {
 public:
  enum class Kind { kMissing, kRegular, kDirectory, kOther };

  virtual ~FileSystem() = default;
  virtual Kind kind(const std::string& path) const = 0;  // follows links
  virtual bool readable(const std::string& path) const = 0;
  virtual bool executable(const std::string& path) const = 0;
};

struct ProgramQuery {
  const LaunchConfig& config;
  std::string argv0;        // as called; if "torchrun", PROGRAM is always given to python
  std::string own_folder;   // the folder that has ddprun, without "/" at its end
  std::string path;         // $PATH
  std::string python_exec;  // $PYTHON_EXEC
};

struct Program {
  std::vector<std::string> argv;  // argv[0] is the file to execute; the program's args come last
  std::string script;             // the file that python (argv[0]) reads; empty: none
  bool is_torchruns = false;      // torchrun would run it with the same command line
  std::string note;               // to be printed once; empty: nothing to tell
  std::string problem;            // why there is no such program; one line, exit 2; empty: there is
};

// Whether ddprun was called as torchrun, and must behave like it.
bool is_torchrun(const std::string& argv0);

// A name with "/" is that file. Without "/" it is a regular file here, then beside ddprun, then in
// PATH. A directory counts only if it has a __main__.py. "*.py" and directories run by python -u;
// other executable files are executed, and readable ones run by python -u. -m, --run-path and
// --no-python override this. Python is $PYTHON_EXEC, or that of ddprun's environment, or python3 in
// PATH.
Program find_program(const ProgramQuery& query, const FileSystem& files);

// Looks on this machine, with PATH and PYTHON_EXEC of `environment`.
Program find_program(const LaunchConfig& config, const std::string& argv0,
                     const Environment& environment);

}  // namespace ddprun::launcher
