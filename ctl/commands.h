// SPDX-License-Identifier: Apache-2.0
// The commands of ddprunctl, and what they say on stdout.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

namespace ddprun::ctl {

class Command {
 public:
  // Adds its flags to the subcommand `name` of `app`, which outlives it.
  Command(CLI::App& app, const char* name) : command_(app.get_subcommand(name)) {}
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  virtual bool chosen() const { return command_->parsed(); }
  // The exit code. Throws Error.
  virtual int run() const = 0;

 protected:
  CLI::App* const command_;
};

// `jobs`, `status`, `logs` and `cancel`.
std::unique_ptr<Command> make_job_commands(CLI::App& app);
std::unique_ptr<Command> make_top_command(CLI::App& app);
std::unique_ptr<Command> make_stack_command(CLI::App& app);
std::unique_ptr<Command> make_debug_command(CLI::App& app);
std::unique_ptr<Command> make_open_command(CLI::App& app);
std::unique_ptr<Command> make_submit_command(CLI::App& app);
std::unique_ptr<Command> make_report_command(CLI::App& app);
std::unique_ptr<Command> make_make_certs_command(CLI::App& app);
// `typed`: the command line behind "doctor", for other nodes.
std::unique_ptr<Command> make_doctor_command(CLI::App& app, std::vector<std::string> typed);

// The exit code of `doctor` after a wrong flag: nothing is known of the node.
inline constexpr int kDoctorUnknown = 3;

// On stderr, as one line whatever is in it.
void say(const std::string& line);

// `errno` of a failed write to stdout, as a line on stderr, with what else the user has to know. A
// reader that left ("| head") has had enough, and is told nothing but that.
void tell_lost_output(int error, const std::string& news = {});

// Writes all of it to stdout. Returns `code`, or, after a line on stderr, that of
// ExitCode::kOutputLost.
int print_or_tell(const std::string& text, int code = 0, const std::string& news = {});

}  // namespace ddprun::ctl
