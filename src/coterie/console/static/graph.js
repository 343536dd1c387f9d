import{b as a,c as b,d as c}from"./chunk-4.js";import"./chunk-1.js";export{c as clip,a as default,b as linesOf};
