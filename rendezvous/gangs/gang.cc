// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/gang.h"

#include <algorithm>
#include <array>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::gangs {
namespace {

// The phases' names, in the order of the enumerators.
constexpr std::array kGangPhases = {"queued", "running", "stopping", "ended"};
constexpr std::array kPartPhases = {"given", "runs", "ended", "lost"};

bool has_zero(const std::string& text) { return text.find('\0') != std::string::npos; }

int number_in(const std::string& text) { return parsed_number<int>(text).value_or(0); }

bool is_variable(const std::string& text) {
  const std::size_t equals = text.find('=');
  return equals != std::string::npos && equals > 0 && !has_zero(text);
}

std::string field(const char* name, const std::string& what) {
  return concat("\"", name, "\": ", what);
}

}  // namespace

const char* to_string(GangPhase phase) { return kGangPhases.at(static_cast<std::size_t>(phase)); }

const char* to_string(PartPhase phase) { return kPartPhases.at(static_cast<std::size_t>(phase)); }

bool is_gang_name(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameBytes) return false;
  if (text.front() == '.' || text.front() == '-') return false;
  return std::ranges::all_of(text, [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' || letter == '-';
  });
}

int slots_of(const GangSpec& spec) {
  return spec.slots != 0 ? spec.slots : number_in(spec.workers);
}

std::string check_spec(const GangSpec& spec) {
  constexpr char kNameRule[] = "wants 1 to 64 letters, digits, \".\", \"_\", \"-\"";
  if (!is_gang_name(spec.id)) return field("id", kNameRule);
  if (!is_gang_name(spec.user)) return field("user", kNameRule);
  if (spec.name.size() > kMaxReasonBytes) return field("name", "is too long");
  if (spec.min_nodes < 1 || spec.min_nodes > spec.max_nodes || spec.max_nodes > kMaxNodes) {
    return field("min_nodes", concat("wants 1 <= min_nodes <= max_nodes <= ", kMaxNodes));
  }
  const bool is_whole = spec.workers == "auto" || spec.workers == "gpu" || spec.workers == "cpu";
  const int workers = number_in(spec.workers);
  if (!is_whole && (workers < 1 || workers > kMaxSlots)) {
    return field("workers", concat("wants a number from 1 to ", kMaxSlots, ", auto, gpu or cpu"));
  }
  if (spec.slots < 0 || spec.slots > kMaxSlots) {
    return field("slots", concat("wants 0 to ", kMaxSlots));
  }
  if (spec.arguments.empty()) return field("arguments", "has no program");
  if (std::ranges::any_of(spec.arguments, has_zero)) return field("arguments", "has a zero byte");
  if (!std::ranges::all_of(spec.environment, is_variable)) {
    return field("environment", "wants NAME=VALUE, each");
  }
  if (!spec.directory.starts_with('/') || has_zero(spec.directory)) {
    return field("directory", "wants an absolute path");
  }
  if (spec.stop_ms < 0 || spec.stop_ms > kMaxStopMs) {
    return field("stop_ms", concat("wants 0 to ", kMaxStopMs));
  }
  return {};
}

std::size_t size_of(const GangSpec& spec) {
  std::size_t bytes = 1024 + spec.directory.size() + spec.name.size();
  for (const auto* list : {&spec.arguments, &spec.environment}) {
    for (const std::string& each : *list) bytes += each.size() + sizeof(std::string);
  }
  return bytes;
}

}  // namespace ddprun::gangs
