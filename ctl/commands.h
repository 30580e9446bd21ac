// SPDX-License-Identifier: Apache-2.0
// The commands of ddprunctl, and helpers that print for them.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

namespace ddprun::ctl {

class Command {
 public:
  // Adds the command's flags to the subcommand `name` of `app`. `app` outlives the command.
  Command(CLI::App& app, const char* name) : command_(app.get_subcommand(name)) {}
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  virtual bool chosen() const { return command_->parsed(); }
  // Runs the command. Returns the exit code. Throws Error.
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
// `typed`: the words after "doctor" on the command line, for the same command on other nodes.
std::unique_ptr<Command> make_doctor_command(CLI::App& app, std::vector<std::string> typed);

// The exit code of `doctor` after a wrong flag: nothing was found out about the node.
inline constexpr int kDoctorUnknown = 3;

// Prints `line` on stderr. It stays one line, whatever characters are in it.
void say(const std::string& line);

// Prints on stderr that a write to stdout failed with errno `error`, and adds `news`. Without news,
// prints nothing if the reader has left ("| head").
void tell_lost_output(int error, const std::string& news = {});

// Writes all of `text` to stdout. Returns `code`. If the write fails, calls tell_lost_output() and
// returns ExitCode::kOutputLost.
int print_or_tell(const std::string& text, int code = 0, const std::string& news = {});

}  // namespace ddprun::ctl
