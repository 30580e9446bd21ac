// SPDX-License-Identifier: Apache-2.0
#include "launcher/own_error_file.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <fstream>
#include <utility>

#include "common/error.h"
#include "common/json.h"

namespace ddprun::launcher {
namespace {

// `name` of `parent`, made where there is no such object.
boost::json::object& object_in(boost::json::object& parent, const char* name) {
  boost::json::value& value = parent[name];
  return value.is_object() ? value.as_object() : value.emplace_object();
}

}  // namespace

boost::json::object further_fields(const membership::WorkerFailure& failure) {
  return parse_object(failure.error_fields).value_or(boost::json::object());
}

std::string error_file_text(const membership::WorkerFailure& failure) {
  if (failure.traceback.empty()) return {};
  std::string stack;
  for (const std::string& line : failure.traceback) stack += line + "\n";
  boost::json::object root = further_fields(failure);
  boost::json::object& message = object_in(root, "message");
  message["message"] = failure.note;
  boost::json::object& extra = object_in(message, "extraInfo");
  extra["py_callstack"] = stack;
  extra["timestamp"] = std::to_string(failure.ended_at);
  message["errorCode"] = failure.signal_number != 0 ? -failure.signal_number : failure.exit_code;
  return boost::json::serialize(root) + "\n";
}

std::string leave_error_file(const std::string& path, const membership::WorkerFailure& failure) {
  const std::string text = error_file_text(failure);
  if (text.empty()) return {};
  std::ofstream file(path, std::ios::trunc);
  file << text << std::flush;
  if (file) return {};
  return "the failure could not be written to " + path + ": " + errno_text(errno);
}

}  // namespace ddprun::launcher
