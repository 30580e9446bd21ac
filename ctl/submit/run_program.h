// SPDX-License-Identifier: Apache-2.0
// A scheduler's own program, run and waited for. Blocking.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/child_process.h"
#include "common/environment.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// As start_child(), with our environment without `without`, and with `more`, which replaces what
// has the same name. Throws Error(kUnsupported) where there is no such program or directory.
Child start_program(ChildCommand command, const Environment& more,
                    const std::vector<std::string>& without = {});

struct ProgramCall {
  std::vector<std::string> argv;            // argv[0] is looked for in PATH where it has no "/"
  std::string input;                        // its standard input
  Environment environment;                  // besides ours, but
  std::vector<std::string> without = {};    // these
  std::chrono::milliseconds limit{60'000};  // then it is killed; of one with a view: so long
                                            // after its last word; 0: never
  const LogView* view = nullptr;  // shows what it prints, as it comes, until it or the view ends
};

struct ProgramEnd {
  int status = 0;        // its exit status, or 128 + signal
  std::string out, err;  // what it printed; with `view` no `out`
};

// Throws Error: kUnsupported where there is no such program, kTimeout naming it,
// kResourceExhausted where it says more than can be kept. One whose view has ended is killed, and
// its status is 0.
ProgramEnd run_program(const ProgramCall& call);

// The program's words on its failure: the last line of `err`, else of `out`, else its status.
std::string failure_text(const ProgramEnd& end);

}  // namespace ddprun::submit
