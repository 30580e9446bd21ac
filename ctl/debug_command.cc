// SPDX-License-Identifier: Apache-2.0
// `ddprunctl debug` starts Python's debugger in one rank of a running job (docs/debug.md).
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/json.h"
#include "common/parsed_number.h"
#include "common/peer_user.h"
#include "common/process_facts.h"
#include "common/shell_words.h"
#include "common/socket.h"
#include "common/text.h"
#include "ctl/commands.h"
#include "ctl/endpoint_flags.h"
#include "ctl/stack/folded_stacks.h"
#include "ctl/submit/run_program.h"
#include "rendezvous/messages/messages.h"
#include "rendezvous/messages/stacks_target.h"

namespace ddprun::ctl {
namespace {

namespace fs = std::filesystem;

constexpr char kAddress[] = "127.0.0.1";
constexpr std::size_t kMostReasonBytes = 200;
constexpr std::chrono::minutes kAttachLimit{5};  // gdb reads symbols of all that PyTorch loads

struct Worker {
  std::string host;
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
};

// Reads "4242 881234", the rest of a line that begins with kProcessLine.
void read_process(std::string_view text, Worker& worker) {
  const auto space = text.find(' ');
  if (space == text.npos) return;
  worker.pid = parsed_number<pid_t>(text.substr(0, space)).value_or(0);
  worker.start_ticks = parsed_number<std::uint64_t>(text.substr(space + 1)).value_or(0);
}

// Reads the page of one rank's stack. Throws Error(kInvalidArgument) if its agent gives no process,
// with the reason. Throws Error(kProtocol) if it is another page.
Worker read_worker(const std::string& page) {
  const auto all = parse_stacks(page);
  const JsonFields fields(all, "the page");
  Worker worker;
  std::string note;
  bool has_lines = false;
  for (const JsonFields& rank : fields.objects("ranks", 1)) {
    worker.host = rank.clipped("host", kMaxShownBytes);
    note = one_line(rank.clipped("note", kMaxShownBytes));
    for (const std::string& each :
         rank.texts("lines", membership::kMaxTailLines, membership::kMaxLineBytes)) {
      has_lines = true;
      std::string_view line = each;
      if (!line.starts_with(membership::kProcessLine)) continue;
      line.remove_prefix(std::string_view(membership::kProcessLine).size());
      read_process(line, worker);
    }
  }
  if (worker.pid <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                has_lines || note.empty()
                    ? "the ddprun on " + one_line(worker.host) + " is of an older version"
                    : note);
  }
  return worker;
}

std::string proc_path(pid_t pid, const char* name) { return concat("/proc/", pid, "/", name); }

// Returns the texts of a file of /proc, each of which ends with a zero byte. Empty: it can't be
// read.
std::vector<std::string> texts_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> texts;
  for (std::string text; std::getline(file, text, '\0');) texts.push_back(text);
  return texts;
}

// Returns the worker's Python, under the name by which it was started. Through a link of that name
// Python finds its virtual environment's modules. nullopt: it runs no Python.
std::optional<std::string> python_of(pid_t pid) {
  std::error_code error;
  const std::string exe = proc_path(pid, "exe");
  const std::string file = fs::read_symlink(exe, error).filename();
  const std::vector<std::string> argv = texts_of(proc_path(pid, "cmdline"));
  if (error || argv.empty() || !file.starts_with("python")) return std::nullopt;
  const fs::path here = fs::read_symlink(proc_path(pid, "cwd"), error);
  std::vector<fs::path> folders;
  if (argv.front().find('/') != std::string::npos) {
    folders.push_back(here);
  } else {
    std::istringstream path(
        find_variable(from_strings(texts_of(proc_path(pid, "environ"))), "PATH").value_or(""));
    for (std::string folder; std::getline(path, folder, ':');) folders.push_back(here / folder);
  }
  // The program may have changed the name that /proc shows (setproctitle).
  for (const fs::path& folder : folders) {
    if (fs::equivalent(folder / argv.front(), exe, error)) return folder / argv.front();
  }
  return exe;
}

// Whether an earlier call has started debugpy in the process. That can be done only once.
bool has_debugpy(pid_t pid) {
  std::ifstream maps(proc_path(pid, "maps"));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/debugpy/") != std::string::npos) return true;
  }
  return false;
}

// Returns gdb's or the shell's reason, else the beginning of the last line: gdb's whole command
// follows there.
std::string reason_of(const submit::ProgramEnd& end) {
  std::istringstream lines(end.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("ptrace:") || line.ends_with("not found")) return one_line(line);
  }
  return one_line(submit::failure_text(end)).substr(0, kMostReasonBytes);
}

// The user of a listener at the port. nullopt: there is none, or the kernel doesn't say.
std::optional<uid_t> user_at(std::uint16_t port) {
  return listener_user(resolve({kAddress, port}).front());
}

bool is_free(std::uint16_t port) {
  for (SocketAddress address : resolve({kAddress, port})) {
    try {
      listen_on(address);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;  // this user may not use that port
      return false;
    }
  }
  return true;
}

class DebugCommand : public Command {
 public:
  explicit DebugCommand(CLI::App& app) : Command(app, "debug"), endpoint_(*command_) {
    command_->add_option("JOB", job_, "Its run id (--rdzv-id)")->required();
    command_->add_option("RANK", rank_, "One of its ranks, of a worker on this machine")
        ->required()
        ->check(CLI::NonNegativeNumber);
    command_
        ->add_option("--port", port_,
                     "The port of 127.0.0.1 that the debugger listens on; default 5678")
        ->check(CLI::Range(1, 65535));
  }

  // Throws as EndpointFlags::fetch_page() and run_program(). Throws Error(kInvalidArgument) if the
  // rank can't be debugged from here, Error(kUnavailable) if the debugger doesn't start.
  int run() const override {
    const std::string name = concat("rank ", rank_, " of ", one_line(job_));
    const Worker worker = worker_of_rank(name);
    const std::string its_process = concat(name, " is process ", worker.pid);
    if (worker.host != host_name()) {
      refuse(concat(its_process, " on ", one_line(worker.host), ": run ddprunctl debug there"));
    }
    if (start_ticks(worker.pid) != worker.start_ticks) {
      refuse(concat(its_process,
                    " of another container on this machine, or it has ended: run "
                    "ddprunctl debug where its ddprun runs"));
    }
    // Root may not do it for another user either: the program run below is the worker's choice.
    struct stat info {};
    if (::stat(concat("/proc/", worker.pid).c_str(), &info) != 0 || info.st_uid != ::geteuid()) {
      refuse(concat(its_process, ", of another user: run ddprunctl debug as that one"));
    }
    const auto python = python_of(worker.pid);
    if (!python) {
      refuse(concat(its_process, ", which runs no Python: gdb -p ", worker.pid));
    }
    if (!is_free(port_)) refuse(concat("port ", port_, " is in use: --port gives another"));
    attach(worker.pid, *python, its_process);
    say("while the debugger listens, every user of this machine can run code in that process");
    return print_or_tell(concat(its_process, ": debugpy listens on ", kAddress, ":", port_, "\n"));
  }

 private:
  [[noreturn]] static void refuse(const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, why);
  }

  Worker worker_of_rank(const std::string& name) const {
    try {
      return read_worker(endpoint_.fetch_page(
          membership::stacks_target({job_, std::to_string(rank_)}), EndpointFlags::Use::kActedOn));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kProtocol) {
        throw pages::foreign_answer(endpoint_.text(), error.what());
      }
      throw Error(error.code(), concat(name, ": ", error.what()));
    }
  }

  // Starts debugpy in the process, through gdb, or from Python 3.14 on through Python itself.
  void attach(pid_t pid, const std::string& python, const std::string& its_process) const {
    const bool had_debugpy = has_debugpy(pid);
    submit::ProgramCall call;
    call.limit = kAttachLimit;
    // Python looks for a module where it starts, and another user may have put one here.
    call.directory = "/";
    call.argv = {python,
                 "-m",
                 "debugpy",
                 "--listen",
                 concat(kAddress, ":", port_),
                 "--pid",
                 std::to_string(pid)};
    submit::ProgramEnd end;
    try {
      end = submit::run_program(call);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      throw Error(error.code(), concat(its_process, ": ", error.what(),
                                       "; debugpy may still come up, open to every user of this "
                                       "machine"));
    }
    if (end.err.find("No module named debugpy") != std::string::npos) {
      refuse(concat(its_process, ": ", one_line(python), " has no debugpy: ", shell_quoted(python),
                    " -m pip install debugpy"));
    }
    // debugpy ends with 0 even if gdb is missing or may not trace.
    if (end.status != 0 || is_free(port_)) {
      if (had_debugpy) {
        refuse(concat(its_process, ": debugpy was started in it before, and listens on that port"));
      }
      throw Error(ErrorCode::kUnavailable,
                  concat(its_process, ": debugpy did not come up in it: ", reason_of(end)));
    }
    // An editor does what a debugger asks of it. Others see the port in the list of processes.
    const auto user = user_at(port_);
    if (user && *user != ::geteuid()) {
      throw Error(ErrorCode::kUnavailable,
                  concat(its_process, ": user ", *user, " has taken port ", port_,
                         " before debugpy did: attach no editor there, and take another --port"));
    }
  }

  EndpointFlags endpoint_;
  std::string job_;
  int rank_ = 0;
  std::uint16_t port_ = 5678;
};

}  // namespace

std::unique_ptr<Command> make_debug_command(CLI::App& app) {
  return std::make_unique<DebugCommand>(app);
}

}  // namespace ddprun::ctl
