/* The text that turboquant eval measures with unless another is named. Written
 * for this program, so that no model has it by heart; in paragraphs, because a
 * string literal of C may be short of 4,096 characters. */
#include "turboquant.h"

const char *const turboquant_text[] = {
    "The ferry to the outer islands left at six in the morning, whatever the weather. Marit had taken it so often that "
    "she no longer looked at the timetable on the wall of the harbour office; she knew it by the sound of the engines, "
    "which the mechanic started twenty minutes before departure and then let idle while he drank his coffee. On this "
    "particular Tuesday the fog was so thick that the lights at the end of the pier had turned into pale yellow discs, "
    "and the captain, a careful man, waited until the radar showed the channel to be free of fishing boats. They left "
    "at seven minutes past six. Nobody complained. Two farmers slept with their caps over their faces, a student read "
    "a book about bridges, and a dog that belonged to no one in particular walked from bench to bench, hoping for "
    "breakfast.\n\n",

    "Marit's work was to look after the weather stations on the islands. There were eleven of them, each a white box "
    "on a steel mast, with a small wind wheel, a rain gauge and a thermometer that had to be kept in the shade. Every "
    "ten minutes a station measured the temperature, the pressure, the humidity and the speed and direction of the "
    "wind, and every hour it sent its numbers to the mainland. If a number was missing, somebody had to find out why. "
    "Usually the answer was simple. Salt had eaten through a cable, or a gull had built its nest where the rain was "
    "supposed to fall, or a curious sheep had leaned against the mast until it stood at an angle. Once a whole station "
    "had disappeared during a storm, and a fisherman brought it back three weeks later, still blinking.\n\n",

    "What she liked best about the job was the arithmetic. A thermometer does not report the temperature; it reports a "
    "voltage, and a table turns the voltage into degrees. The table is only as good as the day on which it was made. "
    "Therefore she carried a second thermometer, which was compared every spring with the standard in the laboratory, "
    "and at every station she wrote down both values side by side. If they differed by less than two tenths of a "
    "degree, she did nothing. If they differed by more, she adjusted the table. After nine years she had a notebook "
    "full of such pairs, and from them she could see how each instrument had grown older: most of them drifted slowly "
    "upwards, as if they wanted to prove that the world was getting warmer faster than it really was.\n\n",

    "\"You could round the numbers,\" her colleague Jonas had said when they talked about the cost of the radio link. "
    "\"Nobody needs to know that it is 11.37 degrees. Send 11.4, and you save a third of the bytes.\" She had thought "
    "about this for a while. It was true that a single value lost almost nothing by rounding. But the forecast did not "
    "use single values; it used differences between neighbouring stations, and sums over many hours, and there small "
    "errors could add up or cancel depending on how they were made. If every station always rounded down, the sum "
    "would be wrong by half a step for each value. If they rounded to the nearest step, the errors would mostly "
    "cancel. "
    "And if one added a little noise before rounding and took the same noise away afterwards, the errors would not "
    "even depend on the weather. \"Fine,\" said Jonas, \"but then explain it to the people in the office.\"\n\n",

    "So they made an experiment. For one month every station sent its values twice: once in full, and once squeezed "
    "into four bits, with a scale that was chosen anew for each hour. In the first week the result was a disaster. The "
    "wind at the northern lighthouse is calm most of the time and terrible on a few days, and a scale that is wide "
    "enough for the storms has no steps left for the breeze. In the second week they used a scale of its own for each "
    "instrument, and the errors became ten times smaller. In the third week they kept the newest hour in full and "
    "squeezed only the older ones, because the forecast depends mostly on what has just happened. In the fourth week "
    "nobody in the office could tell any longer which of the two columns was the original, although Jonas offered a "
    "cake to anyone who could.\n\n",

    "The fog lifted a little before eight. Marit put her notebook away and went out on deck. To the left lay Storholm "
    "with its red barns; to the right, hardly more than a line on the water, the reef on which the old steamer had run "
    "aground in 1911. The captain waved to her from the bridge and pointed ahead. Between two banks of cloud the sun "
    "had found a gap, and in the middle of that gap stood the mast of the first station, white and perfectly straight, "
    "with its wind wheel turning so slowly that one could count the cups: one, two, three, one, two, three. \"Three "
    "metres per second,\" she said aloud, \"from the south-west.\" Later, when she opened the box and read the "
    "display, "
    "it showed 3.1 and 228 degrees, and she wrote both down without a comment.\n\n",

    "There is a list on the door of every station, covered with plastic against the rain. It says: 1. Close the gate "
    "behind you. 2. Check the battery; it must have more than 12.2 volts. 3. Empty the rain gauge and write down what "
    "was in it. 4. Compare the thermometers. 5. Clean the glass of the sunshine recorder, but never with paper. 6. "
    "Call "
    "the office before you leave, even if everything is in order, because the person at the other end may have seen "
    "something that you cannot see from here. Somebody had added a seventh line by hand, in blue ink that had faded to "
    "grey: look up for a moment. In all the years she had never learned who had written it, and she had never left a "
    "station without doing what it said.\n",
};

const size_t turboquant_text_parts = sizeof turboquant_text / sizeof turboquant_text[0];
