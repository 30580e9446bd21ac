// SPDX-License-Identifier: Apache-2.0
// ddprunctl: the operator's tool.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/completion.h"
#include "common/ending.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/man_page.h"
#include "common/parse_problems.h"
#include "common/standard_streams.h"
#include "ctl/commands.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;

int fail(const std::string& message, ExitCode code = ExitCode::kUsage) {
  ctl::say(message);
  return static_cast<int>(code);
}

// Prints the log messages of the libraries.
void say_line(LogLevel level, std::string_view message) {
  const char* kind = level == LogLevel::kWarning ? "warning: "
                     : level == LogLevel::kError ? "error: "
                                                 : "";
  ctl::say(concat(kind, message));
}

constexpr std::pair<const char*, const char*> kCommands[] = {
    {"jobs", "List the jobs of a rendezvous, live ones and those that are over."},
    {"status", "Tell how a rendezvous is: its jobs, agents, stores, journal."},
    {"top", "Follow the jobs of a rendezvous as they run, in a terminal (docs/top.md)."},
    {"stack",
     "Show where the ranks of a running job are: their stacks, equal ones together "
     "(docs/stack.md). "
     "Exit status 1: some have none."},
    {"debug",
     "Start debugpy in one rank of a running Python job on this machine, for VS Code and others "
     "(docs/debug.md)."},
    {"open",
     "Serve the status page of a rendezvous with a token or certificates to a browser on this "
     "machine, until Ctrl-C (docs/status-page.md)."},
    {"submit",
     "Submit a job to Slurm, Kubernetes, hosts that ssh reaches, or standing agents "
     "(docs/submit.md)."},
    {"logs", "Show a submitted job's output (docs/submit.md)."},
    {"cancel", "Ask for the end of submitted jobs (docs/submit.md)."},
    {"report",
     "Make a page of a finished job from the files that it left: ddprun --events and --report, "
     "train --json (docs/run-report.md)."},
    {"make-certs",
     "Make certificates for a lab: an authority (ca.pem), what ddprund serves with (server.pem, "
     "for every HOST) and what ddprun may show (client.pem), each with its .key."},
    {"doctor",
     "Tell whether this node is fit for jobs, and what would mend it. Changes nothing, asks no GPU "
     "for work. Exit status 0 ok, 1 warn, 2 fail, 3 unknown."},
};

constexpr char kExitStatus[] =
    R"( 0        done; of doctor: ok
 1        of doctor: warn; of stack: some ranks have none
 2        a bad flag or file, a refusal, nobody there; of doctor: fail
 3        of doctor: unknown
 69       no answer in time
 70       a fault of its own, an answer that makes no sense
 74       stdout, or a file that it was to make, can't be written
 75       of submit --wait, logs -f: the job's ddprund has forgotten it
 130, 143 ended by SIGINT, SIGTERM: what was submitted goes on
 other    of submit --wait: the job's)";

ManPage man_page(const CLI::App& app) {
  ManPage page{.name = "ddprunctl",
               .section = 1,
               .summary = "submit jobs, look at ddprun's rendezvous, check nodes",
               .synopsis = "ddprunctl COMMAND [flags]",
               .sections = {{"Options", "", man_entries(app)}}};
  for (const CLI::App* command : app.get_subcommands({})) {
    page.sections.push_back(
        {"ddprunctl " + command->get_name(), command->get_description(), man_entries(*command)});
  }
  page.sections.push_back({"Exit status", kExitStatus});
  page.sections.push_back({"See also", "ddprun(1), ddprund(8)"});
  return page;
}

}  // namespace

int main(int argc, char** argv) {
  security::wipe_what_is_freed();
  open_standard_streams();
  set_log_sink(say_line);
  CLI::App app("ddprunctl: submits jobs, looks at ddprun's rendezvous, checks nodes", "ddprunctl");
  app.set_version_flag("--version", "ddprunctl " DDPRUN_VERSION);
  app.require_subcommand(0, 1);
  app.footer(kDocsPlace);
  bool print_man = false;
  std::string shell;
  app.add_flag("--print-man", print_man, "Print the manual page, for man -l -");
  add_completion(app, shell);
  for (const auto& [name, description] : kCommands) app.add_subcommand(name, description);
  std::vector<std::unique_ptr<ctl::Command>> commands;
  commands.push_back(ctl::make_job_commands(app));
  commands.push_back(ctl::make_top_command(app));
  commands.push_back(ctl::make_stack_command(app));
  commands.push_back(ctl::make_debug_command(app));
  commands.push_back(ctl::make_open_command(app));
  commands.push_back(ctl::make_submit_command(app));
  commands.push_back(ctl::make_report_command(app));
  commands.push_back(ctl::make_make_certs_command(app));
  auto made_doctor = ctl::make_doctor_command(app, {argv + std::min(argc, 2), argv + argc});
  const ctl::Command& doctor = *made_doctor;
  commands.push_back(std::move(made_doctor));
  if (argc > 1 && std::string_view(argv[1]) == "emulate") {
    return fail(
        "emulate is no command any more: its load on a ddprund is fleet_load, in the source "
        "under bench/fleet");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    const int code = app.exit(asked, text, text);
    return ctl::print_or_tell(text.str(), code);
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    const CLI::App& parsed = chosen.empty() ? app : *chosen.front();
    const std::string command = chosen.empty() ? "" : " " + parsed.get_name();
    for (const std::string& what : parse_problems<CLI::ExtrasError>(app, error, parsed)) {
      ctl::say(what + " (see ddprunctl" + command + " --help)");
    }
    return doctor.chosen() ? ctl::kDoctorUnknown : static_cast<int>(ExitCode::kUsage);
  }
  if (print_man) return ctl::print_or_tell(to_roff(man_page(app)));
  if (!shell.empty()) {
    return ctl::print_or_tell(completion_script(completed_program(app), shell));
  }
  if (app.get_subcommands().empty()) return fail("which command? See ddprunctl --help");
  try {
    const auto chosen =
        std::ranges::find_if(commands, [](const auto& each) { return each->chosen(); });
    DDPRUN_CHECK(chosen != commands.end());
    return (*chosen)->run();
  } catch (const std::exception& error) {
    const Ending ending = ending_by(error);
    return fail(ending.text, ending.code);
  }
}
