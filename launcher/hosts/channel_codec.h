// SPDX-License-Identifier: Apache-2.0
// The messages between ddprun and the agents that it starts on other hosts, over ssh's standard
// input and output (docs/internals/ssh.md has the grammar). Pure: converts bytes to messages and
// back. Every field is bounded.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/variant.h"

namespace ddprun::launcher::channel {

// Must change when the meaning of any message changes.
inline constexpr char kProtocol[] = "3";

// Comes before an agent's first message: earlier bytes are from the login shell.
inline constexpr std::string_view kMagic{"\0DDPRUN\n", 8};
// At most this many bytes come before kMagic; more aren't from an agent.
inline constexpr std::size_t kMostPrologueBytes = std::size_t{1} << 20;

inline constexpr std::size_t kMostOutputBytes = std::size_t{1} << 16;
// Bounds standard input that is on its way to an agent, or waits there.
inline constexpr std::size_t kMostInputBytes = std::size_t{1} << 18;
inline constexpr std::size_t kMostTextBytes = std::size_t{1} << 18;
// Bounds a message's payload: first a Job's, which is more than exec takes, then any other's.
inline constexpr std::size_t kMostJobBytes = std::size_t{1} << 23;
inline constexpr std::size_t kMostPayloadBytes = kMostTextBytes + 1024;

// The sender of a stream. A node's ddprun sends its agent messages for the launcher, without the
// magic.
enum class From { kAgent, kDdprun, kLauncher };

// ---- either way ----

// Tells that the sender is alive. The launcher's pulse says how long the agent may hear nothing
// after it (0: for ever, since the launcher is stopped).
struct Pulse {
  std::chrono::milliseconds patience{0};
};

// ---- agent → launcher ----

// Sent first, once. kMagic is a part of it.
struct Hello {
  std::string protocol;
  std::string version;     // of ddprun
  std::string host;        // the machine's own name
  std::string reached_at;  // its address in the ssh connection; empty: not known
  std::string came_from;   // the launcher's address in it; empty: not known
};
// The rendezvous is served at this endpoint. Answers a Job with `serve_at`.
struct Serving {
  std::string endpoint;  // HOST:PORT
};
// Output of the node's ddprun.
struct Output {
  bool is_stderr = false;
  std::string bytes;
};
// The sender has room for this many more bytes of standard input.
struct Room {
  std::size_t num_bytes = 0;
  bool has_stdin_rank = false;  // a round begins with that rank here: it gets all further input
};
// Sent last: the node's ddprun has ended.
struct End {
  int exit_code = 0;
  bool was_killed = false;  // by a signal: exit_code is 128 + its number
  bool by_job = false;      // the job has ended, not only this node's part
  std::string last_words;   // a failed job's report, several lines
};

// ---- launcher → agent ----

// The command to run. The answer is Serving if asked for, then output and End.
struct Job {
  // Host at which the node serves the rendezvous, on a free port. Its endpoint becomes the first
  // argument. Empty: another process serves.
  std::string serve_at;
  std::string directory;                 // working directory
  int stop_signal = 15;                  // for ddprun, at the channel's end
  std::chrono::seconds stop_time{0};     // from that signal to SIGKILL
  std::vector<std::string> arguments;    // ddprun's
  std::vector<std::string> environment;  // NAME=VALUE, added to the agent's own
};
// A signal for the node's ddprun.
struct Signal {
  int number = 0;
};
// Standard input, at most as much as the Room that was announced.
struct Input {
  std::string bytes;  // empty: its end
};

using Message = variants::variant<Pulse, Hello, Serving, Output, Room, End, Job, Signal, Input>;

// Returns a message as bytes. Precondition: it keeps the bounds above.
std::string encode(const Message& message);

// Splits a stream into messages. Each direction of a channel has its own.
class Decoder {
 public:
  // An agent's stream begins with kMagic.
  explicit Decoder(From from) : from_(from), is_open_(from != From::kAgent) {}

  void feed(std::string_view bytes) { buffer_.append(bytes); }

  // Returns the next message; nullopt: more bytes are needed. Throws Error(kProtocol) if the peer
  // is no ddprun, or a broken one. After that the stream is useless.
  std::optional<Message> next();

  // Returns the text before the magic, at most its last 4 KiB.
  std::string prologue() const { return is_open_ ? prologue_ : prologue_ + buffer_; }

 private:
  bool skip_prologue();

  const From from_;
  bool is_open_;  // the magic has come
  std::string buffer_;
  std::size_t begin_ = 0;  // where the next message begins in buffer_
  std::size_t num_skipped_ = 0;
  std::string prologue_;
};

}  // namespace ddprun::launcher::channel
