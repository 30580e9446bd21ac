// SPDX-License-Identifier: Apache-2.0
// Pictures as text (ctl/report/picture_text.h), drawn line by line.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ctl/report/png/canvas.h"

namespace ddprun::report {

class PictureLines {
 public:
  // Each picture becomes NAME.png in `folder`.
  explicit PictureLines(std::string folder) : folder_(std::move(folder)) {}

  // Throws Error(kInvalidArgument) where the line is none of a picture, and as Canvas.
  void line(std::string_view line);
  // The last picture is over, too.
  void end();

 private:
  void begin(std::string_view rest);
  void area(std::string_view rest);
  void stroke(std::string_view rest);
  void text(std::string_view rest);

  const std::string folder_;
  std::string name_;
  std::optional<Canvas> canvas_;
};

}  // namespace ddprun::report
