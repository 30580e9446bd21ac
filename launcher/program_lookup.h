// SPDX-License-Identifier: Apache-2.0
// PROGRAM as typed → what to execute. Pure over a small file-system seam, but for the last one,
// which asks this machine.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

// The look-up's questions to the file system.
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
  std::string argv0;        // as called; "torchrun": PROGRAM is always given to python
  std::string own_folder;   // where ddprun lies, no "/" at its end
  std::string path;         // $PATH
  std::string python_exec;  // $PYTHON_EXEC
};

struct Program {
  std::vector<std::string> argv;  // argv[0] is the file to execute; ends with the program's args
  std::string script;             // that argv[0] (python) reads; empty: none
  bool is_torchruns = false;      // torchrun would run it by the same command line
  std::string note;               // not empty: tell the user once
  std::string problem;            // not empty: there is no such program; one line, exit 2
};

// ddprun was called by that name, and behaves accordingly.
bool is_torchrun(const std::string& argv0);

// A name with "/" is that file. Without: a regular file here, then beside ddprun, then in PATH. A
// directory only with a __main__.py in it. "*.py" and directories → python -u; else executable →
// executed, readable → python -u. -m, --run-path and --no-python as they say. Python is
// $PYTHON_EXEC, that of the environment in which ddprun lies, or python3 in PATH.
Program find_program(const ProgramQuery& query, const FileSystem& files);

// On this machine, with the PATH and PYTHON_EXEC of `environment`.
Program find_program(const LaunchConfig& config, const std::string& argv0,
                     const Environment& environment);

}  // namespace ddprun::launcher
