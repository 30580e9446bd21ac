// SPDX-License-Identifier: Apache-2.0
// ddprun: command line → plan → job → exit status.
#include <csignal>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/standard_streams.h"
#include "launcher/cli.h"
#include "launcher/job.h"
#include "launcher/prepare.h"
#include "launcher/terminal_text.h"

namespace {

using namespace ddprun;
using namespace ddprun::launcher;

// One line per problem; a problem of several lines brings its own first word.
int refuse(const std::vector<std::string>& problems, ExitCode code = ExitCode::kUsage) {
  for (const std::string& problem : problems) {
    const bool complete = problem.ends_with('\n');
    write_to_stderr(complete ? problem : "ddprun: " + one_line(problem) + "\n");
  }
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write, with its words
  set_log_sink(&log_to_stderr);
  try {
    Environment environment = current_environment();
    CommandLine line = parse_command_line({argv + 1, argv + argc}, environment);
    if (!line.problems.empty()) return refuse(line.problems);
    if (line.action == CommandLine::Action::kPrintText) {
      write_to_stdout(line.text);
      return static_cast<int>(ExitCode::kOk);
    }
    Preparation ready = prepare(std::move(line.config), std::move(environment), argv[0]);
    if (!ready.problems.empty()) return refuse(ready.problems);
    if (!ready.unfit.empty()) return refuse(ready.unfit, ExitCode::kRetryable);
    for (const std::string& note : ready.notes) log_info(note);
    return Job(std::move(ready.plan)).run();
  } catch (const Error& error) {
    return refuse({error.what()}, exit_code_for(error.code()));
  } catch (const std::exception& error) {
    write_to_stderr("ddprun: internal error: " + std::string(error.what()) + "\n");
    return static_cast<int>(ExitCode::kInternal);
  }
}
