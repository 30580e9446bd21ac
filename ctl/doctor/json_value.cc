// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/json_value.h"

#include <algorithm>
#include <string_view>

#include "common/log.h"
#include "common/utf8.h"

namespace ddprun::doctor {

boost::json::string json_value(const std::string& text) {
  const std::string line = one_line(text);
  std::string valid;
  for (std::string_view rest = line; !rest.empty();) {
    const std::size_t length = utf8_length(rest);
    valid += length == 0 ? std::string_view(kReplacementCharacter) : rest.substr(0, length);
    rest.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return boost::json::string(valid);
}

boost::json::object finding_object(const Finding& finding) {
  boost::json::object object;
  object["check"] = finding.check;
  object["group"] = finding.group;
  object["verdict"] = to_string(finding.outcome.verdict);
  object["seen"] = json_value(finding.outcome.seen);
  object["wanted"] = json_value(finding.outcome.wanted);
  object["why"] = finding.why;
  object["fix"] = json_value(finding.outcome.fix);
  return object;
}

}  // namespace ddprun::doctor
