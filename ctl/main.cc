// SPDX-License-Identifier: Apache-2.0
// ddprunctl: the operator's tool.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string_view>

#include "common/ending.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/man_entries.h"
#include "common/man_page.h"
#include "common/standard_streams.h"
#include "ctl/doctor_command.h"
#include "ctl/job_commands.h"
#include "ctl/make_certs_command.h"
#include "ctl/page_command.h"
#include "ctl/report_command.h"
#include "ctl/standard_output.h"
#include "ctl/submit_command.h"
#include "ctl/tables/tables.h"
#include "ctl/top_command.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;

int fail(const std::string& message, ExitCode code = ExitCode::kUsage) {
  std::fprintf(stderr, "ddprunctl: %s\n", one_line(message).c_str());
  return static_cast<int>(code);
}

// What the libraries below have to say.
void say_line(LogLevel level, std::string_view message) {
  const char* kind = level == LogLevel::kWarning ? "warning: "
                     : level == LogLevel::kError ? "error: "
                                                 : "";
  std::fprintf(stderr, "ddprunctl: %s%s\n", kind, one_line(message).c_str());
}

constexpr char kExitStatus[] =
    R"( 0        done; of doctor: ok
 1        of doctor: warn
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
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write, with its words
  set_log_sink(say_line);
  CLI::App app("ddprunctl: submits jobs, looks at ddprun's rendezvous, checks nodes", "ddprunctl");
  app.set_version_flag("--version", "ddprunctl " DDPRUN_VERSION);
  app.require_subcommand(0, 1);
  bool print_man = false;
  app.add_flag("--print-man", print_man, "Print the manual page, for man -l -");
  ctl::PageCommand jobs(
      app, {"jobs", "List the jobs of a rendezvous, live ones and those that are over.", "/v1/jobs",
            ctl::jobs_table});
  ctl::PageCommand status(
      app, {"status", "Tell how a rendezvous is: its jobs, agents, stores, journal.", "/v1/status",
            ctl::status_table});
  ctl::TopCommand top(app);
  ctl::SubmitCommand submit(app);
  ctl::JobCommands submitted(app, jobs, status);
  ctl::ReportCommand report(app);
  ctl::MakeCertsCommand make_certs(app);
  ctl::DoctorCommand doctor(app, {argv + std::min(argc, 2), argv + argc});
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
    std::string command;
    for (const CLI::App* each : app.get_subcommands()) command = " " + each->get_name();
    const int code = fail(std::string(error.what()) + " (see ddprunctl" + command + " --help)");
    return doctor.chosen() ? ctl::kDoctorUnknown : code;
  }
  if (print_man) {
    return ctl::print_or_tell(to_roff(man_page(app)));
  }
  if (app.get_subcommands().empty()) return fail("which command? See ddprunctl --help");
  try {
    if (submit.chosen()) return submit.run();
    if (submitted.chosen()) return submitted.run();
    if (jobs.chosen()) return static_cast<int>(jobs.run());
    if (status.chosen()) return static_cast<int>(status.run());
    if (top.chosen()) return top.run();
    if (doctor.chosen()) return doctor.run();
    if (report.chosen()) return report.run();
    return static_cast<int>(make_certs.run());
  } catch (const std::exception& error) {
    const Ending ending = ending_by(error);
    return fail(ending.text, ending.code);
  }
}
