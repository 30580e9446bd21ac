// SPDX-License-Identifier: Apache-2.0
// The messages between ddprun and the agents that it starts on other hosts, over ssh's standard
// input and output (docs/internals/ssh.md has the grammar). Pure: bytes in, messages out; every
// field is bounded.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/variant.h"

namespace ddprun::launcher::channel {

// Changes with the meaning of any message.
inline constexpr char kProtocol[] = "3";

// Stands before an agent's first message: what comes earlier is the login shell's.
inline constexpr std::string_view kMagic{"\0DDPRUN\n", 8};
// So much of that is taken; more is no agent.
inline constexpr std::size_t kMostPrologueBytes = std::size_t{1} << 20;

inline constexpr std::size_t kMostOutputBytes = std::size_t{1} << 16;
// Standard input that is on its way to an agent, or waits there.
inline constexpr std::size_t kMostInputBytes = std::size_t{1} << 18;
inline constexpr std::size_t kMostTextBytes = std::size_t{1} << 18;
// A message's payload: a Job's, which is more than exec takes, and any other one's.
inline constexpr std::size_t kMostJobBytes = std::size_t{1} << 23;
inline constexpr std::size_t kMostPayloadBytes = kMostTextBytes + 1024;

// A node's ddprun says to its agent what the launcher is to hear, without the magic.
enum class From { kAgent, kDdprun, kLauncher };

// ---- either way ----

// The one that sent it is there. The launcher's says for how long the agent may hear nothing after
// it (0: for ever, the launcher stands still).
struct Pulse {
  std::chrono::milliseconds patience{0};
};

// ---- agent → launcher ----

// First, once: kMagic is a part of it.
struct Hello {
  std::string protocol;
  std::string version;     // of ddprun
  std::string host;        // as the machine calls itself
  std::string reached_at;  // its address in the ssh connection; empty: no ssh, or not known
  std::string came_from;   // the launcher's, likewise
};
// The rendezvous is served here. Answers a Job with `serve_at`.
struct Serving {
  std::string endpoint;  // HOST:PORT
};
// Output of this node's ddprun.
struct Output {
  bool is_stderr = false;
  std::string bytes;
};
// The sender has room for so much more standard input.
struct Room {
  std::size_t num_bytes = 0;
  bool has_stdin_rank = false;  // a round begins in which the rank that has stdin is here: all of
                                // it is for this node from now on
};
// Last: this node's ddprun has ended.
struct End {
  int exit_code = 0;
  bool was_killed = false;  // by a signal: 128 + its number is the exit code
  bool by_job = false;      // the job has ended, not only this node's part in it
  std::string last_words;   // the report of a job that failed; several lines
};

// ---- launcher → agent ----

// The command to run. Answered by Serving if asked for, else by output and End.
struct Job {
  // Host to serve the rendezvous at, on a free port; its endpoint becomes the first argument.
  // Empty: somebody else serves.
  std::string serve_at;
  std::string directory;                 // working directory
  int stop_signal = 15;                  // for ddprun at the channel's end
  std::chrono::seconds stop_time{0};     // from then to SIGKILL
  std::vector<std::string> arguments;    // of ddprun
  std::vector<std::string> environment;  // NAME=VALUE, added to the agent's own
};
// For this node's ddprun.
struct Signal {
  int number = 0;
};
// Standard input, within the Room that was said.
struct Input {
  std::string bytes;  // empty: its end
};

using Message = variants::variant<Pulse, Hello, Serving, Output, Room, End, Job, Signal, Input>;

// A message as bytes. Precondition: it is within the bounds above.
std::string encode(const Message& message);

// Takes a stream apart. One object per direction of a channel.
class Decoder {
 public:
  // An agent's stream begins with kMagic.
  explicit Decoder(From from) : from_(from), is_open_(from != From::kAgent) {}

  void feed(std::string_view bytes) { buffer_.append(bytes); }

  // The next message; nullopt: more bytes are wanted. Throws Error(kProtocol): the peer is no
  // ddprun, or a broken one; the stream is of no use any more.
  std::optional<Message> next();

  // The text before the magic, at most its last 4 KiB.
  std::string prologue() const { return is_open_ ? prologue_ : prologue_ + buffer_; }

 private:
  bool skip_prologue();

  const From from_;
  bool is_open_;  // past the magic
  std::string buffer_;
  std::size_t begin_ = 0;  // of the next message in buffer_
  std::size_t num_skipped_ = 0;
  std::string prologue_;
};

}  // namespace ddprun::launcher::channel
