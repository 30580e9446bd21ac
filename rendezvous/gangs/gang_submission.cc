// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/gang_submission.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/log.h"
#include "common/utf8.h"
#include "rendezvous/gangs/gang_json.h"

namespace ddprun::gangs {
namespace {

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

}  // namespace

std::int64_t stop_ms_of(std::chrono::milliseconds shutdown_timeout) {
  constexpr std::chrono::milliseconds kOwnEnd{10'000};
  return (shutdown_timeout + kOwnEnd).count();
}

std::vector<std::string> take_environment(std::vector<std::string> variables, GangSpec& spec) {
  std::vector<std::string> notes;
  for (std::string& variable : variables) {
    if (is_text(variable)) {
      spec.environment.push_back(std::move(variable));
    } else {
      notes.push_back(concat("the variable ", one_line(variable.substr(0, variable.find('='))),
                             " is no UTF-8 text, and stays here"));
    }
  }
  return notes;
}

std::string check_submission(const GangSpec& spec, const std::string& keep_back) {
  if (!std::ranges::all_of(spec.arguments, is_text)) {
    return "the command line is no UTF-8 text: standing agents can't be told it";
  }
  if (!is_text(spec.directory)) {
    return "the directory's name is no UTF-8 text: standing agents can't be told it";
  }
  if (std::string wrong = check_spec(spec); !wrong.empty()) return wrong;
  const std::size_t bytes = gang_to_json(spec).size();
  if (bytes <= kMaxGangBytes) return {};
  return concat("the command line and the environment have ", bytes,
                " bytes, and a gang has at most ", kMaxGangBytes, ": keep variables back with ",
                keep_back);
}

}  // namespace ddprun::gangs
