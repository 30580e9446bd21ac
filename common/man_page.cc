// SPDX-License-Identifier: Apache-2.0
#include "common/man_page.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "common/text.h"

namespace ddprun {
namespace {

// Escapes a text, so that roff takes no letter of it for a command.
std::string escaped(std::string_view text) {
  std::string result;
  bool begins_line = true;
  for (const char letter : text) {
    if (begins_line && (letter == '.' || letter == '\'')) result += "\\&";
    begins_line = letter == '\n';
    if (letter == '\\') {
      result += "\\e";
    } else if (letter == '-') {
      result += "\\-";
    } else {
      result += letter;
    }
  }
  return result;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return text;
}

// Writes paragraphs, and lines that are shown as they are.
std::string body(std::string_view text) {
  std::string result;
  bool is_literal = false;
  while (!text.empty()) {
    const std::string_view line = take_until(text, "\n");
    const bool literal = line.starts_with(' ');
    if (literal != is_literal && !line.empty()) {
      result += literal ? ".nf\n" : ".fi\n";
      is_literal = literal;
    }
    result += line.empty() ? (is_literal ? "\n" : ".PP\n") : escaped(line) + "\n";
  }
  return result + (is_literal ? ".fi\n" : "");
}

}  // namespace

std::string to_roff(const ManPage& page) {
  std::string roff = ".TH " + upper(page.name) + " " + std::to_string(page.section) +
                     " \"\" \"ddprun " DDPRUN_VERSION "\"\n.SH NAME\n" + escaped(page.name) +
                     " \\- " + escaped(page.summary) + "\n";
  if (!page.synopsis.empty()) roff += ".SH SYNOPSIS\n.nf\n" + escaped(page.synopsis) + "\n.fi\n";
  for (const ManSection& section : page.sections) {
    roff += ".SH " + escaped(upper(section.title)) + "\n" + body(section.text);
    for (const auto& [head, text] : section.entries) {
      roff += ".TP\n.B " + escaped(head) + "\n" + body(text);
    }
  }
  return roff + ".PP\n" + escaped(kDocsPlace) + "\n";
}

}  // namespace ddprun
