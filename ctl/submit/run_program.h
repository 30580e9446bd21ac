// SPDX-License-Identifier: Apache-2.0
// Runs a scheduler's program and waits for its end. Blocking.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/child_process.h"
#include "common/environment.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Starts a program as start_child() does, with this process' environment less `without`, plus
// `more`, which wins. Throws Error(kUnsupported) if there is no such program or directory.
Child start_program(ChildCommand command, const Environment& more,
                    const std::vector<std::string>& without = {});

struct ProgramCall {
  std::vector<std::string> argv;          // argv[0] is looked up in PATH if it has no "/"
  std::string input;                      // its standard input
  std::string directory = {};             // where it starts; empty: here
  Environment environment;                // added to this process' environment
  std::vector<std::string> without = {};  // variables of it that are left out
  // After this time the program is killed. With a view the time counts from its last output. 0:
  // never.
  std::chrono::milliseconds limit{60'000};
  const LogView* view = nullptr;  // shows its output as it comes, until it or the view ends
};

struct ProgramEnd {
  int status = 0;        // exit status, or 128 + signal
  std::string out, err;  // its output; with `view`, `out` is empty
};

// Throws Error: kUnsupported if there is no such program, kTimeout naming it, kResourceExhausted if
// it prints too much. A program whose view has ended is killed, and its status is 0.
ProgramEnd run_program(const ProgramCall& call);

// Returns the program's reason for its failure: the last line of `err`, else of `out`, else its
// status.
std::string failure_text(const ProgramEnd& end);

}  // namespace ddprun::submit
