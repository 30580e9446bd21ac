// SPDX-License-Identifier: Apache-2.0
// The one exception type. Its code says what the caller can do. Its message says what happened, to
// whom, and what to do next.
#pragma once

#include <stdexcept>
#include <string>

namespace ddprun {

enum class ErrorCode {
  kInvalidArgument,    // The caller's input is wrong: correct it and call again.
  kTimeout,            // The deadline passed; the effect at the peer is unknown: retry or give up.
  kUnavailable,        // The peer can't be reached: retry later or elsewhere.
  kConnectionLost,     // An established connection ended: reconnect with a new object.
  kProtocol,           // The peer broke the protocol: give up, the versions don't match.
  kPeerLost,           // Another rank is gone: leave, and meet again in the next round.
  kAborted,            // abort() was called on this object: stop using it.
  kResourceExhausted,  // A limit was reached (memory cap, descriptors): use less or raise it.
  kUnsupported,        // Not built in, or not on this machine: choose another way.
  kSystem,             // The operating system refused: the message has the call and errno's text.
};

// Returns "timeout", "peer lost", … for logs and reports.
const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Throws Error "<what>: <strerror(error_number)>": kResourceExhausted if descriptors ran out, else
// kSystem.
[[noreturn]] void throw_system_error(const std::string& what, int error_number);

// Returns the text of an errno value; thread-safe.
std::string errno_text(int error_number);

}  // namespace ddprun
