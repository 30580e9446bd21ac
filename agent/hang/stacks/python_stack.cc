// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stacks/stacks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <utility>

#include "common/child_process.h"
#include "common/environment.h"
#include "common/fd_text.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxOutput = 64 << 10;

}  // namespace

bool is_python(pid_t pid) {
  std::array<char, 4096> buffer;
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), buffer.data(), buffer.size());
  if (size <= 0) return false;
  const std::string_view path(buffer.data(), static_cast<std::size_t>(size));
  return path.substr(path.rfind('/') + 1).starts_with("python");
}

bool has_debugpy(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/pydevd") != std::string::npos) return true;
  }
  return false;
}

std::vector<std::string> parse_py_spy(std::string_view text, std::size_t max_frames) {
  std::vector<std::string> frames;
  bool in_main = false;
  while (!text.empty()) {
    const std::string_view line = take_until(text, "\n");
    if (line.starts_with("Thread ")) {
      in_main = line.find("\"MainThread\"") != std::string_view::npos;
    } else if (in_main && line.starts_with("    ") && frames.size() < max_frames) {
      frames.emplace_back(line.substr(line.find_first_not_of(' ')));
    }
  }
  return frames;
}

PythonStack python_stack(pid_t pid, std::size_t max_frames) {
  std::string text;
  try {
    Pipe pipe = make_pipe();
    const Child child = start_child(
        // py-spy only reads memory (--nonblocking). If it stopped the process and was killed, the
        // process might stay stopped.
        {.argv = {"py-spy", "dump", "--nonblocking", "--pid", std::to_string(pid)},
         .environment = to_strings(current_environment()),
         .descriptors = {ChildCommand::kSame, pipe.write_end.get(), pipe.write_end.get()},
         .dies_with_us = true});
    pipe.write_end.reset();
    text = read_text(pipe.read_end.get(), kMaxOutput).text;
    pipe.read_end.reset();
    ::waitpid(child.pid, nullptr, 0);
  } catch (const Error&) {
    return {{}, "py-spy in PATH would show the lines of Python, too: pip install py-spy"};
  }
  std::vector<std::string> frames = parse_py_spy(text, max_frames);
  if (!frames.empty()) return {std::move(frames), ""};
  constexpr std::size_t kMostSaid = 200;
  std::string_view rest = text;
  const std::string said(take_until(rest, "\n").substr(0, kMostSaid));
  return {{}, said.empty() ? "py-spy shows no frame of Python" : "py-spy: " + one_line(said)};
}

}  // namespace ddprun::agent
