// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/flag_check.h"

#include <unistd.h>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/process_facts.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/run_program.h"

namespace ddprun::submit {

std::string ddprun_beside() {
  const std::string beside = own_folder() + "/ddprun";
  return ::access(beside.c_str(), X_OK) == 0 ? beside : "ddprun";
}

void check_flags(const JobFile& job, const std::string& ddprun) {
  JobFile here = job;
  here.ddprun.clear();
  const CommandTraits traits{
      .ddprun = ddprun, .default_nodes = "1", .says_nodes = true, .flags = {}};
  std::vector<std::string> words = ddprun_command(here, traits);
  words.insert(words.begin() + 1, "--show-config");
  ProgramEnd end;
  try {
    end = run_program({.argv = words, .input = {}, .environment = {}});
  } catch (const Error&) {
    return;
  }
  if (end.status != static_cast<int>(ExitCode::kUsage)) return;
  const std::size_t last = end.err.find_last_not_of('\n');
  throw Error(ErrorCode::kInvalidArgument,
              last == std::string::npos ? failure_text(end) : end.err.substr(0, last + 1));
}

}  // namespace ddprun::submit
